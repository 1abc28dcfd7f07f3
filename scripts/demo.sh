#!/usr/bin/env bash
# Runs Figures 2 and 3 of the I2VFC paper and prints their tables and the paths of the reports.
set -euo pipefail

program=$1
out=out/demo
status=0
rm -rf "$out"
for figure in fig2 fig3; do
    "$program" run "scenarios/papers/i2vfc/$figure.toml" --out "$out/$figure" || status=$?
done
echo "Reports: $out/fig2/report.html and $out/fig3/report.html"
exit "$status"
