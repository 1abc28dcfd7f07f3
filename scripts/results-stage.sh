#!/usr/bin/env bash
# Runs the STAGE paper's scenarios on both stages and writes docs/results/stage.md from the records.
# Real packets take real time: an hour, on a machine that does nothing else.
set -euo pipefail

program=$1
out=out/figures-stage
rm -rf "$out"
for stage in sim emu; do
    for scenario in line rfc2544 bit-errors backbone; do
        # 3: an expectation was not met; 5: void. The results page says which.
        "$program" run "scenarios/papers/stage/$scenario.toml" --on "$stage" --out "$out/$stage/$scenario" ||
            case $? in 3 | 5) ;; *) exit 1 ;; esac
    done
done
python3 scripts/results_stage.py "$program" "$out"
python3 scripts/gallery.py
