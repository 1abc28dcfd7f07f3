#!/usr/bin/env bash
# Checks licences, bans and sources with cargo-deny, which it builds on first use.
set -euo pipefail

tools=target/tools
if [ ! -x "$tools/bin/cargo-deny" ]; then
    echo "building cargo-deny into $tools (some minutes, once)"
    cargo install --quiet --locked --version '^0.20' --root "$tools" cargo-deny
fi
"$tools/bin/cargo-deny" --all-features check --config deny.toml licenses bans sources
