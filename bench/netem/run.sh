#!/usr/bin/env bash
# Compares the simulator, netstage's emulator and netem on every scenario here, in a virtual machine whose clock
# counts instructions (scripts/vm.sh).
set -euo pipefail

program=$1
out=target/vm/out/netem
rm -rf "$out"
mkdir -p "$out"
scripts/vm.sh --counted --out "$out" bash -c '
    for scenario in bench/netem/*.toml; do
        name=$(basename "$scenario" .toml)
        for emulator in own netem; do
            "$0" run "$scenario" --on emu --emulator $emulator --out "$1/$name/$emulator" >/dev/null || exit
        done
    done' "$program" "$out"
for scenario in bench/netem/*.toml; do
    records=$out/$(basename "$scenario" .toml)
    "$program" run "$scenario" --out "$records/sim" >/dev/null
    "$program" report "$records/sim" "$records/own" "$records/netem"
done
