#!/usr/bin/env bash
# Builds web/dist (build), checks that the committed one is what its sources give (verify), or tests it (test).
set -euo pipefail
cd "$(dirname "$0")/../web"

# Vite wants Node 20.19 or newer; Debian 12 has 18. npm carries newer ones.
if ! node -e 'const [a, b] = process.versions.node.split(".").map(Number)
              process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'; then
    tools=$PWD/../target/tools
    [ -x "$tools/node_modules/.bin/node" ] || npm install --silent --no-audit --no-fund --prefix "$tools" node@22
    PATH=$tools/node_modules/.bin:$PATH
fi

npm ci --no-audit --no-fund --silent
case $1 in
build)
    npm run build
    ;;
verify)
    npm run check
    npm run build
    git diff --exit-code --stat -- dist || { echo "web/dist is not what web/src gives: run make web" >&2; exit 1; }
    ;;
test)
    # The page that is served is tested with the program that serves it.
    [ -x ../target/release/netstage ] || (cd .. && cargo build --release --locked -p netstage)
    npm test
    ;;
esac
