#!/usr/bin/env python3
"""A thousand agents under one controller, as processes of this machine: how long from the first word to the start,
what the controller takes, how well they start together. Writes its table into README.md, which says how."""

import argparse
import json
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
RATES = REPOSITORY / "target/release/fleet_rates"
README = HERE / "README.md"
BEGIN, END = "<!-- Measured: written by run.py. -->", "<!-- End of what was measured. -->"
SIZES = [20, 100, 250, 500, 1000]
HEAD = """
| agents | taken | prepare to start | hub | who commands | results per agent and second, reports | agents late: median, 99 %, most | bare timers late | most over most |
| --: | --: | --: | --: | --: | --: | --: | --: | --: |
"""
# What is asked for: seconds from prepare to start, lateness over bare timers', cores and megabytes of the controller.
ASKED = {"prepare": 5.0, "late": 2.0, "cores": 1.0, "memory": 500}


def measure(program, agents):
    """One run; in words what went wrong where it did not end well."""
    done = subprocess.run([RATES, program, str(agents)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    told = done.stderr.strip().splitlines()
    print("\n".join(told[-20:]), file=sys.stderr)
    if done.returncode != 0:
        return told[-1] if told else f"it ended with {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1])


def late(found):
    return ", ".join(f"{found[which]:.1f}" for which in ["median", "p99", "most"]) + " ms"


def ratio(found):
    return found["late_ms"]["most"] / max(found["timers_late_ms"]["most"], 1e-9)


def row(agents, found):
    if isinstance(found, str):
        return f"| {agents} | the run failed | | | | | | | |"
    return (
        f"| {agents} | {found['taken_s']:.2f} s | {found['started_s']:.2f} s "
        f"| {found['hub_cores']:.3f} cores, {found['hub_mb']} MB "
        f"| {found['commander_cores']:.3f} cores, {found['commander_mb']} MB "
        f"| {found['results_per_second']:.1f}, {found['reports']} "
        f"| {late(found['late_ms'])} | {late(found['timers_late_ms'])} | {ratio(found):.2f} |"
    )


def remarks(agents, found):
    """What a reader of the row should know: why it failed, what was lost, which of what is asked for it misses."""
    if isinstance(found, str):
        return [found]
    told = [found["remark"]] if found["remark"] else []
    if found["lost"]:
        told.append(f"{found['lost']} agents were lost")
    if found["started_s"] > ASKED["prepare"]:
        told.append("prepare to start takes too long")
    if ratio(found) > ASKED["late"]:
        told.append("agents are later than twice the bare timers")
    if found["hub_cores"] + found["commander_cores"] > ASKED["cores"]:
        told.append("hub and who commands take more than a core")
    if found["hub_mb"] + found["commander_mb"] > ASKED["memory"]:
        told.append("hub and who commands take more than 500 MB")
    return told


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    cores = sum(line.startswith("processor") for line in open("/proc/cpuinfo"))
    return f"{cores} cores ({model}), Linux {platform.release()}, all on it: agents, controller, who commands.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netstage", default=REPOSITORY / "target/release/netstage")
    parser.add_argument("--agents", type=int, nargs="*", default=SIZES)
    parser.add_argument("--print", action="store_true", help="print the table, and leave README.md as it is")
    options = parser.parse_args()
    rows, notes, failed = [], [], False
    for agents in options.agents:
        found = measure(options.netstage, agents)
        failed |= isinstance(found, str) or found["lost"] > 0
        rows.append(row(agents, found))
        notes += [f"- {agents} agents: {remark}." for remark in remarks(agents, found)]
        print(rows[-1], file=sys.stderr)
    if not notes:
        notes = ["All rows are within what is asked for."]
    table = machine() + HEAD + "\n".join(rows) + "\n\n" + "\n".join(notes) + "\n"
    if options.print:
        print(table)
    else:
        text = README.read_text()
        before, rest = text.split(BEGIN)
        README.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{rest.split(END)[1]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
