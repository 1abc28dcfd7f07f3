#!/usr/bin/env bash
# Builds web/dist, or verifies that the committed one is what its sources give, and tests it.
set -euo pipefail
cd "$(dirname "$0")/../web"

npm ci --no-audit --no-fund --silent
case $1 in
build)
    npm run build
    ;;
verify)
    npm run check
    npm run build
    git diff --exit-code --stat -- dist || { echo "web/dist is not what web/src gives: run make web" >&2; exit 1; }
    npm test
    ;;
esac
