#!/usr/bin/env bash
# Runs all tests, then lists the skipped ones with the reason: `test.sh [full] [PROGRAM]`. With CI=true, the skipped tests
# must match tests/absent.toml.
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

# Runs a suite, keeps its output, and records a failure.
suite() {
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>&1 | tee "$report/$name.log"
    [ "${PIPESTATUS[0]}" -eq 0 ] || failed+=("$name")
}

# Runs the Python and web suites in the background: they use the CPU while network tests wait.
beside() {
    scripts/python.sh "test${full:+-full}" "$program" &>"$report/python.log" || touch "$report/python.failed"
    scripts/web.sh test &>"$report/web.log" || touch "$report/web.failed"
}

options=()
[ -z "$full" ] || options=(-- --include-ignored --skip measures_)
tests=("${CARGO:-cargo}" test --release --locked --workspace)
suite build "${tests[@]}" --no-run
# A process group of its own, so that it ends with this script.
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
