#!/usr/bin/env bash
# Tests a server against its OpenAPI description with schemathesis. The argument is the URL of the description.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.32.5
tools=$PWD/target/tools/schemathesis-$version
if [ ! -e "$tools/ready" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$version"
    touch "$tools/ready"
fi

# The stream of events ends with its run. All runs that requests start are rejected or short, so no request hangs.
# schemathesis stores its data in the working directory.
cd "$tools"
exec "$tools/bin/schemathesis" run "$1" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples 20 --seed 1 --generation-deterministic --no-color --workers 1 --request-timeout 20
