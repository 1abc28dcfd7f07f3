#!/usr/bin/env bash
# Checks licenses, bans and sources of all dependencies with cargo-deny, which it builds on first use: those of the
# workspace, of the fuzz targets and of the protocol generator. Checks the licenses of the web page's packages, too.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=target/tools
if [ ! -x "$tools/bin/cargo-deny" ]; then
    echo "building cargo-deny in $tools (some minutes, once)"
    # An unoptimized build takes half the time and is fast enough.
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
# 0BSD has no conditions.
wrong = {name: package.get("license") for name, package in packages.items()
         if name and package.get("license") not in allowed | {"0BSD"}}
print("web/package-lock.json:", f"licenses not in deny.toml: {wrong}" if wrong else "licenses ok")
sys.exit(bool(wrong))
END
