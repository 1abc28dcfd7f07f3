#!/usr/bin/env bash
# Runs scenarios on both stages and writes docs/results/two-stages.md from the records.
# Real packets take real time: an hour, on a machine that does nothing else. Scenarios may be named.
set -euo pipefail

program=$1
shift
out=out/two-stages
examples=scenarios/examples
all=("$examples"/{two-hosts,link-failure,traffic-patterns,queues,tcp-flavours,random-loss,applications} scenarios/papers/i2vfc/no-control)
scenarios=("${@:-${all[@]}}")

# What is long in itself runs once.
repeats() {
    case $1 in traffic-patterns | tcp-flavours | applications) echo 1 ;; *) echo 3 ;; esac
}

for scenario in "${scenarios[@]}"; do
    name=$(basename "$scenario" .toml)
    options=(--repeat "$(repeats "$name")")
    if [[ $name == tcp-flavours ]]; then
        # The others differ by design: the record says in what.
        options+=(--vary flow.download.tcp.algorithm=reno,cubic --vary flow.download.tcp.sack=true)
    fi
    for stage in sim emu; do
        rm -rf "${out:?}/$name/$stage"
        # 3: an expectation was not met; 5: void. The page says which.
        "$program" run "${scenario%.toml}.toml" "${options[@]}" --retries 2 --on "$stage" --out "$out/$name/$stage" ||
            case $? in 3 | 5) ;; *) exit 1 ;; esac
    done
done
python3 scripts/results_two_stages.py "$out"
