#!/usr/bin/env bash
# Holds a server to its OpenAPI description: schemathesis asks all that it allows, and more. Takes the
# description's address.
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

# Events last as long as their run, which no run does here: the study a request starts is refused or over.
# What it remembers of earlier runs it keeps where it stands.
cd "$tools"
exec "$tools/bin/schemathesis" run "$1" \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance \
    --max-examples 20 --seed 1 --generation-deterministic --no-color --workers 1 --request-timeout 20
