#!/usr/bin/env bash
# Runs the tests and ends with one list of what was skipped, and why: `test.sh [full] [PROGRAM]`.
# In CI (CI=true) a skip must stand in tests/absent.toml, and what stands there must be skipped.
set -uo pipefail
cd "$(dirname "$0")/.."

full=
[ "${1:-}" = full ] && full=full && shift
program=${1:-$PWD/target/release/netstage}
report=$PWD/target/tests
rm -rf "$report"
mkdir -p "$report"
export NETSTAGE_TESTS_REPORT=$report/skips
failed=()

# Runs a suite to its end, whatever becomes of it, and keeps what it says.
suite() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>&1 | tee "$report/$name.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$name")
}

options=()
[ -z "$full" ] || options=(-- --include-ignored --skip measures_)
suite rust "${CARGO:-cargo}" test --release --locked --workspace --no-fail-fast "${options[@]}"
suite python scripts/python.sh "test${full:+-full}" "$program"
suite web scripts/web.sh test
python3 scripts/skips.py "$report" --program "$program" --failed "${failed[*]}" ${full:+--full}
