#!/usr/bin/env bash
# Checks licenses, bans, sources and known vulnerabilities of all dependencies with cargo-deny, which it builds on first
# use: those of the workspace, of the fuzz targets and of the protocol generator. Checks the licenses of the web page's
# packages, too. Without the database of vulnerabilities (RustSec, on GitHub), it says so and checks the rest; with
# ADVISORIES=required, it fails.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=target/tools
if [ ! -x "$tools/bin/cargo-deny" ]; then
    echo "building cargo-deny in $tools (some minutes, once)"
    # An unoptimized build takes half the time and is fast enough.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --version '^0.20' --root "$tools" cargo-deny
fi
checks=(licenses bans sources)
if "$tools/bin/cargo-deny" --config deny.toml --all-features --locked fetch db; then
    checks+=(advisories)
else
    echo "known vulnerabilities not checked: the RustSec database cannot be fetched" >&2
    [ "${ADVISORIES:-}" != required ] || exit 1
fi
for workspace in . fuzz protobuf; do
    "$tools/bin/cargo-deny" --config deny.toml --manifest-path "$workspace/Cargo.toml" --all-features --locked \
        check "${checks[@]}"
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
