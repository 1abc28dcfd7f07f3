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

# Flows whose TCP the simulator is also asked to be like Linux'.
connections() {
    case $1 in
        two-hosts | tcp-flavours) echo download ;;
        link-failure) echo backup ;;
        queues) echo bulk ;;
        applications) echo disk files video web ;;
        no-control) echo 'tcp*' ;;
    esac
}

for scenario in "${scenarios[@]}"; do
    name=$(basename "$scenario" .toml)
    options=(--repeat "$(repeats "$name")")
    if [[ $name == tcp-flavours ]]; then
        # The others differ by design: the record says in what.
        options+=(--vary flow.download.tcp.algorithm=reno,cubic --vary flow.download.tcp.sack=true)
    fi
    linux=()
    read -ra flows <<<"$(connections "$name")"
    for flow in "${flows[@]}"; do
        linux+=(--set "flow.$flow.tcp.loss_detection=\"rack\"" --set "flow.$flow.tcp.delayed_ack=\"40 ms\"")
    done
    for stage in sim emu; do
        rm -rf "${out:?}/$name/$stage"
        # 3: an expectation was not met; 5: void. The page says which.
        "$program" run "${scenario%.toml}.toml" "${options[@]}" --retries 2 --on "$stage" --out "$out/$name/$stage" ||
            case $? in 3 | 5) ;; *) exit 1 ;; esac
    done
    rm -rf "${out:?}/$name/linux"
    if [[ $name == tcp-flavours ]]; then
        options=("${options[@]/=reno,cubic/=reno,linux-cubic}")
    fi
    if [[ ${#linux[@]} -gt 0 ]]; then
        "$program" run "${scenario%.toml}.toml" "${options[@]}" "${linux[@]}" --out "$out/$name/linux" || [ $? -eq 3 ]
    fi
done
python3 scripts/results_two_stages.py "$out"
