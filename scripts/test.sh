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

# Runs a suite to its end, whatever its result, and keeps its output.
suite() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>&1 | tee "$report/$name.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$name")
}

# Runs two suites, one after the other, in the background: they use a processor while the tests of networks wait.
beside() {
    scripts/python.sh "test${full:+-full}" "$program" &>"$report/python.log" || touch "$report/python.failed"
    scripts/web.sh test &>"$report/web.log" || touch "$report/web.failed"
}

options=()
[ -z "$full" ] || options=(-- --include-ignored --skip measures_)
tests=("${CARGO:-cargo}" test --release --locked --workspace)
suite build "${tests[@]}" --no-run
# A process group of its own, so that all of it ends with this script.
set -m
beside </dev/null &
set +m
trap 'kill -- -$! 2>/dev/null; exit 130' INT TERM
suite rust "${tests[@]}" --no-fail-fast "${options[@]}"
wait
for name in python web; do
    echo "== $name"
    cat "$report/$name.log"
    [ ! -e "$report/$name.failed" ] || failed+=("$name")
done
python3 scripts/skips.py "$report" --program "$program" --failed "${failed[*]}" ${full:+--full}
