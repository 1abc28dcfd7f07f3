#!/usr/bin/env bash
# Says what a build lacks, and how to get it.
set -euo pipefail

missing=0
if ! command -v cc >/dev/null; then
    echo "netstage needs a C compiler: sudo apt-get install -y gcc libc6-dev" >&2
    missing=1
fi
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    echo "netstage needs Rust $wanted or newer: https://rustup.rs" >&2
    missing=1
else
    found=$(rustc --version | sed -E 's/rustc ([0-9]+\.[0-9]+).*/\1/')
    if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        echo "netstage needs Rust $wanted or newer, this is $found: rustup update stable" >&2
        missing=1
    fi
fi
exit "$missing"
