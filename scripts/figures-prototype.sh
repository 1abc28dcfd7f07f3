#!/usr/bin/env bash
# Runs the figures of the I2VFC paper that the prototype has, and those of its simulations, on both
# stages, and writes docs/results/i2vfc-prototype.md. Half an hour of real time, on a quiet machine.
set -euo pipefail

program=$1
papers=scenarios/papers/i2vfc
out=out/prototype

# 3: an expectation was not met; 5: void, as the host stalled. The page says which.
run() { # NAME OPTION…
    "$program" run "${@:2}" --out "$out/$1" || case $? in 3 | 5) ;; *) exit 1 ;; esac
}

rm -rf "$out"
mkdir -p "$out"
run sim $papers/fig10.toml
run emu $papers/fig10.toml --on emu --retries 2

# One run each, and of Figures 4 and 5 the cells of a = b = 0.1: the others take hours of real time.
for stage in sim emu; do
    for figure in 2 4 5 7; do
        narrow=()
        case $figure in 4 | 5) narrow=(--set 'vpn.*.control.increase=0.1' --set vpn.vpn1.control.decrease=0.1) ;; esac
        run fig$figure-$stage $papers/fig$figure.toml --on $stage --repeat 1 --retries 2 "${narrow[@]}"
    done
done

python3 bench/pe/run.py
cp bench/target/pe/bench-pe.json "$out"
python3 scripts/results_prototype.py "$out"
