#!/usr/bin/env bash
# Generates the Rust code of the protocols (build), or checks that the committed code matches the .proto files (verify).
set -euo pipefail
cd "$(dirname "$0")/.."
cargo run --quiet --locked --manifest-path protobuf/Cargo.toml --target-dir target/protobuf -- "$@"
