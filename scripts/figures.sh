#!/usr/bin/env bash
# Runs every scenario of the I2VFC paper and writes docs/results from the records.
set -euo pipefail

program=$1
out=out/figures
records=()
rm -rf "$out"
# Figures 10 and 11 are the prototype's, on real packets.
for scenario in scenarios/papers/i2vfc/{fig2,fig3,fig4,fig5,fig7,no-control}.toml; do
    name=$(basename "$scenario" .toml)
    # Exit 3 means an expectation was not met: the results page says which.
    "$program" run "$scenario" --out "$out/$name" || [ $? -eq 3 ]
    records+=("$out/$name")
done
python3 scripts/results.py "$program" "${records[@]}"
python3 scripts/results.py "$program" --defaults
python3 scripts/gallery.py
