#!/usr/bin/env bash
# Checks that the tools for a build are installed, and says how to install those that are missing.
set -euo pipefail

missing=0
if ! command -v cc >/dev/null; then
    echo "error: C compiler missing; run sudo apt-get install -y gcc libc6-dev" >&2
    missing=1
fi
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    echo "error: Rust missing; install $wanted or newer from https://rustup.rs" >&2
    missing=1
else
    found=$(rustc --version | sed -E 's/rustc ([0-9]+\.[0-9]+).*/\1/')
    if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
        echo "error: Rust $found is too old; run rustup update stable to get $wanted or newer" >&2
        missing=1
    fi
fi
exit "$missing"
