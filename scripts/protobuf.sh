#!/usr/bin/env bash
# Generates the Rust of the protocols (build), or checks that the committed Rust is what their descriptions give
# (verify).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --locked --manifest-path protobuf/Cargo.toml --target-dir target/protobuf -- "$@"
