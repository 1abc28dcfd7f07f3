#!/usr/bin/env python3
"""Measures a thousand agents under one controller, as processes on this machine: the time to the start, the load of the
controller, and the accuracy of the common start. Writes its table into README.md, which describes the method."""

import argparse
import json
import pathlib
import platform
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
RATES = REPOSITORY / "target/release/fleet_rates"
README = FOLDER / "README.md"
BEGIN, END = "<!-- Measured: written by run.py. -->", "<!-- End of what was measured. -->"
SIZES = [20, 100, 250, 500, 1000]
HEAD = """
| agents | connect | prepare to start | hub | controller | results per agent and second, reports | lateness of agents: median, 99 %, max | lateness of bare timers | ratio of max |
| --: | --: | --: | --: | --: | --: | --: | --: | --: |
"""
# Goals: seconds from prepare to start, lateness relative to bare timers, cores and megabytes of the controller.
GOALS = {"prepare": 5.0, "late": 2.0, "cores": 1.0, "memory": 500}


def measure(program, agents):
    """Returns the result of one run, or an error message."""
    done = subprocess.run([RATES, program, str(agents)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    messages = done.stderr.strip().splitlines()
    print("\n".join(messages[-20:]), file=sys.stderr)
    if done.returncode != 0:
        return messages[-1] if messages else f"fleet_rates exited with {done.returncode}"
    return json.loads(done.stdout.splitlines()[-1])


def late(result):
    return ", ".join(f"{result[which]:.1f}" for which in ["median", "p99", "max"]) + " ms"


def ratio(result):
    return result["late_ms"]["max"] / max(result["timers_late_ms"]["max"], 1e-9)


def row(agents, result):
    if isinstance(result, str):
        return f"| {agents} | the run failed | | | | | | | |"
    return (
        f"| {agents} | {result['connected_s']:.2f} s | {result['started_s']:.2f} s "
        f"| {result['hub_cores']:.3f} cores, {result['hub_mb']} MB "
        f"| {result['commander_cores']:.3f} cores, {result['commander_mb']} MB "
        f"| {result['results_per_second']:.1f}, {result['reports']} "
        f"| {late(result['late_ms'])} | {late(result['timers_late_ms'])} | {ratio(result):.2f} |"
    )


def remarks(agents, result):
    """Returns remarks on a row: failures, lost agents and missed goals."""
    if isinstance(result, str):
        return [result]
    notes = [result["remark"]] if result["remark"] else []
    if result["lost"]:
        notes.append(f"{result['lost']} agents were lost")
    if result["started_s"] > GOALS["prepare"]:
        notes.append("goal missed: prepare to start takes more than 5 s")
    if ratio(result) > GOALS["late"]:
        notes.append("goal missed: agents are more than twice as late as bare timers")
    if result["hub_cores"] + result["commander_cores"] > GOALS["cores"]:
        notes.append("goal missed: hub and controller use more than one core")
    if result["hub_mb"] + result["commander_mb"] > GOALS["memory"]:
        notes.append("goal missed: hub and controller use more than 500 MB")
    return notes


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    cores = sum(line.startswith("processor") for line in open("/proc/cpuinfo"))
    return f"{cores} cores ({model}), Linux {platform.release()}, running agents, hub and controller.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netstage", default=REPOSITORY / "target/release/netstage")
    parser.add_argument("--agents", type=int, nargs="*", default=SIZES)
    parser.add_argument("--print", action="store_true", help="print the table instead of writing README.md")
    options = parser.parse_args()
    rows, notes, failed = [], [], False
    for agents in options.agents:
        result = measure(options.netstage, agents)
        failed |= isinstance(result, str) or result["lost"] > 0
        rows.append(row(agents, result))
        notes += [f"- {agents} agents: {remark}." for remark in remarks(agents, result)]
        print(rows[-1], file=sys.stderr)
    if not notes:
        notes = ["All rows meet the goals."]
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
