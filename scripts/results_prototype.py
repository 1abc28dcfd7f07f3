#!/usr/bin/env python3
"""Writes docs/results/i2vfc-prototype.md: Figure 10, simulated and on real packets, and what PEs take.

    scripts/results_prototype.py FOLDER    # of scripts/figures-prototype.sh

Numbers come from the records alone. What explains them is in docs/results/i2vfc-prototype.notes.md.
"""

import json
import pathlib
import sys

from results_page import table, write

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/results/i2vfc-prototype.md"
VPNS = ["vpn1", "vpn2", "vpn3", "vpn4"]
FLOWS = ["tcp1", "tcp2[0]", "tcp2[1]", "tcp3", "tcp4[0]", "tcp4[1]"]
STAGES = {"sim": "simulated", "emu": "real packets"}
NAMES = {"base": "I2VFC", "none": "no control", "fixed": "fixed rates at the ingress", "drr": "DRR in the core",
         "weighted": "I2VFC, weights 1 2 1 3"}
WEIGHTS = {"weighted": [1, 2, 1, 3]}
# From the moment Figure 10 is judged by: 5 s after the last VPN has joined.
FROM, BIN = 20, 2


def load(folder: pathlib.Path, name: str):
    return json.loads((folder / f"{name}.json").read_text())


def lines(figures: list, name: str) -> dict:
    figure = next(figure for figure in figures if figure["name"] == name)
    return {series["name"]: series["y"] for series in figure["series"]}


def late(values: list) -> float:
    kept = [value for value in values[FROM // BIN:] if value is not None]
    return sum(kept) / len(kept)


def fairness(shares: list) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def converged(values: list, above: float) -> str:
    """From when on a line stays above a bound, seconds."""
    bad = [index for index, value in enumerate(values) if value is not None and value < above]
    start = (bad[-1] + 1) * BIN if bad else 0
    return f"{start} s" if start < len(values) * BIN else "not"


def shares(folder: pathlib.Path) -> list:
    rows = []
    for stage, said in STAGES.items():
        throughput = lines(load(folder / stage, "figures"), "throughput")
        flows = lines(load(folder / stage, "figures"), "flows")
        indices = lines(load(folder / stage, "figures"), "fairness")
        for variant, name in NAMES.items():
            rates = [late(throughput[f"{vpn}, {variant}"]) for vpn in VPNS]
            weights = WEIGHTS.get(variant, [1] * len(VPNS))
            pairs = [[late(flows[f"tcp{k}[{i}], {variant}"]) for i in (0, 1)] for k in (2, 4)]
            rows.append([said, name, *(f"{rate:.2f}" for rate in rates),
                         f"{fairness([rate / weight for rate, weight in zip(rates, weights)]):.3f}",
                         f"{min(fairness(pair) for pair in pairs):.3f}", converged(indices[variant], 0.95)])
    return rows


def each_flow(folder: pathlib.Path) -> list:
    rows = []
    for stage, said in STAGES.items():
        flows = lines(load(folder / stage, "figures"), "flows")
        for variant, name in NAMES.items():
            rows.append([said, name, *(f"{late(flows[f'{flow}, {variant}']):.2f}" for flow in FLOWS)])
    return rows


def papers(folder: pathlib.Path) -> list:
    """Every cell of Figures 2, 4, 5 and 7 that ran on both stages."""
    rows = []
    for figure in (2, 4, 5, 7):
        records = [load(folder / f"fig{figure}-{stage}", "record") for stage in STAGES]
        for cells in zip(*(record["cells"] for record in records)):
            spoiled = any(raw(cells[1]) in why for why in records[1]["void"])
            rows.append([figure, label(cells[0]) + (" (void)" if spoiled else ""), *(value for metric, subjects in CELLS
                                                    for cell in cells for value in [best(cell, metric, subjects)])])
    return rows


# What is compared, and whether it is the network's or the fullest link's.
CELLS = [("fairness.inter_vpn", False), ("fairness.intra_vpn", False), ("link.utilisation", True)]


def raw(cell: dict) -> str:
    """As netstage names it."""
    variant = [cell["variant"]] if cell["variant"] else []
    return " ".join(variant + [f"{path}={value}" for path, value in cell["settings"]])


def label(cell: dict) -> str:
    settings = [f"{path.replace('vpn.*.control.increase', 'a').replace('vpn.vpn1.control.decrease', 'b₁')} = {value}"
                for path, value in cell["settings"]]
    return ", ".join(([cell["variant"]] if cell["variant"] not in ("", "base") else []) + settings)


def best(cell: dict, metric: str, of_links: bool) -> str:
    found = [entry["mean"] for entry in cell["summary"]
             if entry["metric"] == metric and (of_links or not entry["subject"]) and entry["mean"] is not None]
    return f"{max(found):.3f}" if found else "–"


def expectations(folder: pathlib.Path) -> list:
    rows = []
    judged = {stage: load(folder / stage, "record")["expectations"] for stage in STAGES}
    for position, entry in enumerate(judged["sim"]):
        cells = {stage: judged[stage][position]["cells"][0] for stage in STAGES}
        found = [f"{cell['achieved']} {'✓' if cell['pass'] else '✗'}" for cell in cells.values()]
        rows.append([entry["name"], entry["condition"], *found])
    return rows


def processors(folder: pathlib.Path) -> str:
    path = folder / "bench-pe.json"
    if not path.exists():
        return "Not measured in this run.\n"
    found = json.loads(path.read_text())
    seen = {(entry["vpns"], entry["rate_mbps"]): entry for entry in found["rates"] + found["vpns"]}
    rows = [[entry["vpns"], entry["rate_mbps"], f"{entry['carried_mbps']:.1f}" + (" (void)" if entry["void"] else ""),
             *(f"{100 * entry[key]:.2f} %" for key in ("all_in", "own_in", "all_out", "own_out")),
             f"{180 * entry['all_in']:.1f} s", f"{entry['memory_in'] / 1e6:.1f}", f"{entry['memory_out'] / 1e6:.1f}"]
            for _, entry in sorted(seen.items())]
    return table(["VPNs", "Mbit/s", "carried", "ingress", "own code", "egress", "own code", "ingress in 180 s",
                  "ingress MB", "egress MB"], rows, 0)


def main():
    folder = pathlib.Path(sys.argv[1])
    environment = load(folder / "emu", "environment")
    machine = f"{environment['cpu']}, {environment['cores']} cores, {environment['kernel']}"
    write(PAGE, {
        "machine": f"Machine: {machine}.\n",
        "shares": table(["stage", "", *VPNS, "F", "least F inside", "F ≥ 0.95 from"], shares(folder), 2),
        "flows": table(["stage", "", *FLOWS], each_flow(folder), 2),
        "papers": table(["figure", "cell", *(f"{what}, {said}" for what in ("F between VPNs", "F inside", "utilisation")
                                              for said in STAGES.values())], papers(folder), 2),
        "expectations": table(["expectation", "", *STAGES.values()], expectations(folder), 2),
        "processors": processors(folder),
    })


if __name__ == "__main__":
    main()
