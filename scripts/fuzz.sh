#!/usr/bin/env bash
# Fuzzes every target on stable Rust for SECONDS each and prints the edges that the committed corpus covers, the edges
# found in addition, the time of the last one, and the number of inputs. New inputs are kept in fuzz/target/found, inputs
# that fail in fuzz/artifacts.
#
#     scripts/fuzz.sh SECONDS [TARGET…]
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=$1
shift
targets=${*:-$(ls corpus)}

# Coverage instrumentation as in cargo-fuzz, without nightly Rust.
export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
# With an explicit target, build scripts are compiled without these flags.
triple=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --locked --quiet --target "$triple" --target-dir target/fuzzing
mkdir -p artifacts target/found target/log

printf '%-10s %8s %8s %16s %10s\n' target edges found 'last after, s' inputs
for target in $targets; do
    export FUZZ_TARGET=$target
    fuzz=target/fuzzing/$triple/release/fuzz
    mkdir -p "target/found/$target"
    log=target/log/$target
    edges=$("$fuzz" -runs=0 "corpus/$target" 2>&1 | sed -n 's/.*INITED cov: \([0-9]*\) .*/\1/p')
    # The log gets a time per line, since libFuzzer prints none.
    began=$(date +%s)
    if ! "$fuzz" -max_total_time="$seconds" -artifact_prefix="artifacts/$target-" \
        "target/found/$target" "corpus/$target" 2>&1 |
        while IFS= read -r line; do printf '%(%s)T %s\n' -1 "$line"; done >"$log"; then
        tail -n 20 "$log" >&2
        echo "error: $target failed; the input is in fuzz/artifacts" >&2
        exit 1
    fi
    awk -v target="$target" -v edges="$edges" -v began="$began" '
        { for (place = 4; place < NF; place++) if ($place == "cov:") covered = $(place + 1) }
        $3 == "INITED" { most = covered }
        $3 == "NEW" && covered > most { most = covered; last = $1 - began }
        $3 == "DONE" { inputs = substr($2, 2) }
        END { printf "%-10s %8d %8d %16s %10d\n", target, edges, most - edges, last == "" ? "-" : last, inputs }
    ' "$log"
done
