#!/usr/bin/env bash
# Checks the workflows of GitHub Actions with actionlint, which Go installs into target/tools. Skipped
# where Go or the module is not available.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v1.7.12
actionlint=$PWD/target/tools/actionlint-$version/actionlint
if [ ! -x "$actionlint" ]; then
    if ! command -v go >/dev/null; then
        echo ".github/workflows: not checked, actionlint needs Go"
        exit 0
    fi
    if ! GOBIN=$(dirname "$actionlint") go install "github.com/rhysd/actionlint/cmd/actionlint@$version"; then
        echo ".github/workflows: not checked, go install actionlint failed"
        exit 0
    fi
fi
"$actionlint"
echo ".github/workflows: no errors"
