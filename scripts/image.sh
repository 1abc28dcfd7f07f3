#!/usr/bin/env bash
# Builds the container image with podman or docker, and runs a scenario in it. A host without a
# working engine is told so, and no more.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=
for candidate in podman docker; do
    if [ -z "$engine" ] && "$candidate" info >/dev/null 2>&1; then
        engine=$candidate
    fi
done
if [ -z "$engine" ]; then
    echo "skipped: the container image needs podman or docker, and neither works here"
    exit 0
fi
ignore=()
[ "$engine" = docker ] || ignore=(--ignorefile packaging/Containerfile.dockerignore)
"$engine" build "${ignore[@]}" -f packaging/Containerfile -t netstage .
"$engine" run --rm netstage run /usr/share/doc/netstage/scenarios/examples/two-hosts.toml --out /tmp/record
