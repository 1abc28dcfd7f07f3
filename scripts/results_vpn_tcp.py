#!/usr/bin/env python3
"""Writes docs/results/vpn-tcp.md from the records of the VPN paper's scenarios.

    scripts/results_vpn_tcp.py PROGRAM FOLDER    # FOLDER/{sim,emu}/{fig3,fig4,best-window,iscsi-loop,…}

Numbers and pictures, which the program draws, come from the records alone; a record that is missing leaves its column
empty. What explains them is in docs/results/vpn-tcp.notes.md, a section per part.
"""

import json
import pathlib
import sys

from results_page import draw, marked, table, write

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "docs/results"
STAGES = ["sim", "emu"]
SCENARIOS = ["fig3", "fig4", "fig5", "fig6", "best-window", "direct-windows", "iscsi", "iscsi-writes", "iscsi-loop",
             "gateways"]
# Of these the page has a picture per stage: the figures of their reports by name.
PICTURES = {"fig3": "window", "fig4": "window", "fig5": "window", "fig6": "throughput", "direct-windows": "throughput"}


def load(folder: pathlib.Path, stage: str, scenario: str):
    path = folder / stage / scenario / "record.json"
    return json.loads(path.read_text()) if path.exists() else None


def number(bits) -> str:
    return "–" if bits is None else f"{bits / 1e6:.2f} Mbit/s"


def judged(records: dict) -> str:
    """A row per expectation: what is claimed, and what each stage came to in each cell it holds for."""
    names = list(dict.fromkeys(e["name"] for r in records.values() if r for e in r["expectations"]))
    rows = []
    for name in names:
        found = {s: next((e for e in (r or {"expectations": []})["expectations"] if e["name"] == name), None)
                 for s, r in records.items()}
        claim = next(e.get("claim", "") for e in found.values() if e)
        cells = []
        for stage in STAGES:
            entry = found.get(stage)
            values = entry["cells"] if entry else []
            cells.append(", ".join(c["achieved"] + (" ✓" if c["pass"] else " ✗") for c in values) or "–")
        rows.append([name, claim, *cells])
    return table(["expectation", "the paper's claim", *STAGES], rows, left=2)


def swept(records: dict) -> str:
    """Throughput in each cell of a sweep."""
    rows: dict = {}
    for stage, record in records.items():
        for cell in (record or {"cells": []})["cells"]:
            key = ", ".join(value for _, value in cell["settings"])
            mean = next((s["mean"] for s in cell["summary"] if s["metric"] == "flow.throughput"), None)
            rows.setdefault(key, {})[stage] = number(mean)
    return table(["cell", *STAGES], [[key, *(found.get(s, "–") for s in STAGES)] for key, found in rows.items()])


def follows(record) -> str:
    """What throughput follows across the cells of a sweep."""
    entries = [c for c in (record or {}).get("correlations", []) if "cell" not in c]
    if not entries:
        return "(Not computed.)\n"
    rows = [[c["metric"], f"{c['coefficient']:.2f}", f"{c['low']:.2f} … {c['high']:.2f}"] for c in entries]
    return table(["throughput follows", "rank correlation", "95 % interval"], rows)


def drawn(program: str, folder: pathlib.Path, scenario: str) -> str:
    """A picture per stage."""
    pictures = []
    for stage in STAGES:
        record, file = folder / stage / scenario, f"vpn-tcp-{scenario}-{stage}"
        if record.exists():
            draw(program, record, {PICTURES[scenario]: file}, RESULTS)
            pictures.append(f"![{scenario}, {stage}]({file}.svg)\n")
    return "".join(pictures)


def main(program: str, folder: pathlib.Path):
    # `make bench-tcp` writes it into this page, too.
    parts = {"cost": marked(REPOSITORY / "bench/tcp/README.md", "cost")}
    for scenario in SCENARIOS:
        records = {stage: load(folder, stage, scenario) for stage in STAGES}
        parts[scenario] = judged(records)
        if any(r and len(r["cells"]) > 1 for r in records.values()):
            parts[scenario] += "\n" + swept(records)
        if scenario in PICTURES:
            parts[scenario] += "\n" + drawn(program, folder, scenario)
        for stage, record in records.items():
            parts[f"{scenario}-{stage}-follows"] = follows(record)
    write(RESULTS / "vpn-tcp.md", parts)


main(sys.argv[1], pathlib.Path(sys.argv[2]))
