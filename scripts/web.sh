#!/usr/bin/env bash
# Builds web/dist (build), checks that the committed web/dist matches its sources (verify), or tests it (test).
set -euo pipefail
cd "$(dirname "$0")/../web"

# Vite needs Node.js 20.19 or newer, and Debian 12 has 18. npm provides a newer one.
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
    git diff --exit-code --stat -- dist || { echo "error: web/dist does not match web/src; run make web" >&2; exit 1; }
    ;;
test)
    # The tests start the server of the program.
    [ -x ../target/release/netstage ] || (cd .. && cargo build --release --locked -p netstage)
    npm test
    ;;
esac
