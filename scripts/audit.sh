#!/usr/bin/env bash
# Checks licences, bans and sources with cargo-deny, which it builds on first use: of what is linked, the Python
# package included, and of what fuzzes it or generates its code. The same licences hold of what the page is built with.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=target/tools
if [ ! -x "$tools/bin/cargo-deny" ]; then
    echo "building cargo-deny into $tools (some minutes, once)"
    # Unoptimized, it builds in half the time and is still quick.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --version '^0.20' --root "$tools" cargo-deny
fi
for workspace in . fuzz protobuf; do
    "$tools/bin/cargo-deny" --config deny.toml --manifest-path "$workspace/Cargo.toml" --all-features --locked \
        check licenses bans sources
done
python3 - <<'END'
import json, sys, tomllib

allowed = set(tomllib.load(open("deny.toml", "rb"))["licenses"]["allow"])
packages = json.load(open("web/package-lock.json"))["packages"]
# 0BSD asks for nothing.
wrong = {name: package.get("license") for name, package in packages.items()
         if name and package.get("license") not in allowed | {"0BSD"}}
print("web/package-lock.json:", f"licences not in deny.toml: {wrong}" if wrong else "licenses ok")
sys.exit(bool(wrong))
END
