#!/usr/bin/env bash
# Fuzz targets on stable Rust: `replay` runs the committed corpora once, `run SECONDS` fuzzes.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

targets=$(sed -n 's/^name = "\(fuzz_.*\)"/\1/p' Cargo.toml)
case $1 in
replay)
    cargo build --release --locked --quiet --target-dir ../target
    for target in $targets; do
        "../target/release/$target" -runs=0 "corpus/$target" 2>&1 | tail -n 1
    done
    ;;
run)
    # Coverage feedback as cargo-fuzz sets it, without nightly.
    export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
    export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
    # Named, the target keeps these flags away from build scripts.
    triple=$(rustc -vV | sed -n 's/^host: //p')
    cargo build --release --locked --quiet --target "$triple" --target-dir target/fuzzing
    mkdir -p artifacts
    for target in $targets; do
        echo "$target: $2 s"
        mkdir -p "target/found/$target"
        "target/fuzzing/$triple/release/$target" -max_total_time="$2" -artifact_prefix=artifacts/ \
            "target/found/$target" "corpus/$target" 2>&1 | tail -n 4
    done
    ;;
esac
