#!/usr/bin/env python3
"""Writes docs/results/i2vfc.md from the records of the paper's scenarios, and the pictures beside it.

    scripts/results.py PROGRAM RECORD...
    scripts/results.py PROGRAM --defaults    # runs variations of the defaults: i2vfc-defaults.md

Numbers come from the records alone. What explains them is in docs/results/i2vfc.notes.md,
a section per figure, and is merged in below that figure's tables. A number in the notes is
written {name} and filled in from the records too, so that text and tables cannot disagree.
"""

import json
import pathlib
import re
import statistics
import subprocess
import sys

from results_page import draw, table

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs/results"
REFERENCE = RESULTS.parent.parent / "bench/sim/reference.json"
PAGE, NOTES = RESULTS / "i2vfc.md", RESULTS / "i2vfc.notes.md"
BOTTLENECK = "bottleneck.forward"
READINGS = ["adapt-b", "adapt-b-equal-weights", "scale-a", "scale-a-equal-weights"]
INCREASE, DECREASE = "vpn.*.control.increase", "vpn.vpn1.control.decrease"

# Pictures worth keeping: figure of the record → file in docs/results.
PICTURES = {
    "fig2": {"fairness": "fig2-fairness", "throughput": "fig2-throughput"},
    "fig3": {"fairness": "fig3-fairness"},
    "fig4": {"index-adapt-b": "fig4-adapt-b", "index-scale-a-equal-weights": "fig4-scale-a-equal-weights"},
    "fig5": {"index-adapt-b": "fig5-adapt-b", "index-scale-a-equal-weights": "fig5-scale-a-equal-weights"},
    "fig7": {"fairness": "fig7-fairness", "throughput": "fig7-throughput"},
}


# Reading a record

class Record:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.name = folder, folder.name
        self.data = json.loads((folder / "record.json").read_text())
        self.environment = json.loads((folder / "environment.json").read_text())
        self.figures = {f["name"]: f for f in json.loads((folder / "figures.json").read_text())}
        self.cells = self.data["cells"]
        self.expectations = {e["name"]: e for e in self.data["expectations"]}

    def value(self, cell: int, metric: str, subject: str = "") -> dict:
        """Mean and 95 % interval over the runs; the mean over the time flows are under way."""
        found = [s for s in self.cells[cell]["summary"]
                 if s["metric"] == metric and s["subject"] == subject]
        return found[0] if found else {"mean": None}

    def late(self, figure: str, series: str) -> float:
        """Mean of a line of a figure against time over the last ten seconds, bins of 1 s."""
        line = [s for s in self.figures[figure]["series"] if s["name"] == series][0]
        return statistics.mean(line["y"][-10:])

    def sums(self, cell: int, metric: str) -> float:
        """A metric added up over its subjects."""
        of_metric = [s["mean"] for s in self.cells[cell]["summary"] if s["metric"] == metric]
        return sum(value for value in of_metric if value is not None)

    def seconds(self, cell: int) -> float:
        start, end = self.cells[cell]["measured_ns"]
        return (end - start) / 1e9

    def expected(self, name: str, cell: int):
        """What came of an expectation in one cell; None where it does not apply."""
        of_cell = [c for c in self.expectations[name]["cells"] if c["cell"] == cell]
        return of_cell[0] if of_cell else None

    def setting(self, cell: int, path: str) -> str:
        return dict(map(tuple, self.cells[cell]["settings"])).get(path, "")

    def variant(self, name: str) -> list:
        return [i for i, cell in enumerate(self.cells) if cell["variant"] == name]


# Text

def number(estimate: dict, digits: int = 3, scale: float = 1.0) -> str:
    if estimate["mean"] is None:
        return "–"
    text = f"{estimate['mean'] * scale:.{digits}f}"
    if estimate.get("high") is not None:
        text += f" ± {(estimate['high'] - estimate['mean']) * scale:.{digits}f}"
    return text


def verdict(cell) -> str:
    return "·" if cell is None else "✓" if cell["pass"] else "✗"


def judged(cell, digits: int = 3) -> str:
    if cell is None:
        return "·"
    text = number(cell, digits) if cell["mean"] is not None else cell["achieved"]
    return f"{text} {verdict(cell)}"


def seconds(cell) -> str:
    """A convergence time: a whole number of bins in every run, or the program's words."""
    return f"{cell['achieved']} {verdict(cell)}"


def picture(file: str, caption: str) -> str:
    return f"![{caption}]({file}.svg)\n"


# Figures

def inter_vpn(record: Record) -> tuple:
    """Figures 2 and 3."""
    rows, facts = [], {}
    for cell in range(len(record.cells)):
        a = record.setting(cell, INCREASE)
        first = record.figures["fairness"]["series"][cell]["y"][5]
        rows.append([a, "≥ 0.9", judged(record.expected("fair", cell)), judged(record.expected("worst-second", cell)),
                     f"{first:.2f}", seconds(record.expected("converged", cell)),
                     judged(record.expected("used", cell))])
        key = a.rstrip("0").rstrip(".") if "." in a else a
        facts[f"f{key}"] = f"{record.expected('fair', cell)['mean']:.3f}"
        facts[f"first{key}"] = f"{first:.2f}"
    text = table(["a", "paper: F", "F, 10–50 s", "worst second", "first second",
                  "F stays ≥ 0.9 from", "utilisation"], rows)
    text += "\n" + picture(f"{record.name}-fairness", "Inter-VPN fairness over time, a line per a") + "\n"
    text += share_table(record)
    return text, facts


def share_table(record: Record) -> str:
    """Throughput of each VPN against what its weight gives of all they carry."""
    weights = {vpn["name"]: vpn["weight"] for vpn in record.data["topology"]["vpns"]}
    rows = []
    for cell in range(len(record.cells)):
        a = record.setting(cell, INCREASE)
        rates = {vpn: record.late("throughput", f"{vpn}, increase = {a}") for vpn in weights}
        fair = sum(rates.values()) / sum(weights.values())
        rows.append([a] + [f"{rates[vpn]:.2f} of {fair * weights[vpn]:.2f}" for vpn in weights])
    header = ["a", *(f"{vpn}, weight {weight:g}" for vpn, weight in weights.items())]
    return "Mbit/s of each VPN over 40–50 s, of what its weight gives it:\n\n" + table(header, rows)


def per_vpn(record: Record, cell: int) -> float:
    return statistics.mean(s["mean"] for s in record.cells[cell]["summary"]
                           if s["metric"] == "fairness.intra_vpn.per_vpn")


def congestion(record: Record, cell: int) -> dict:
    """Where packets wait and are dropped."""
    drops = record.value(cell, "link.drops", BOTTLENECK)["mean"] / record.seconds(cell)
    return {"core drops": drops, "core queue": record.value(cell, "link.queue", BOTTLENECK)["mean"],
            "pe queue": record.sums(cell, "vpn.queue"),
            "pe drops": record.sums(cell, "vpn.queue_drops") / record.seconds(cell)}


def intra_vpn(record: Record) -> tuple:
    """Figures 4 and 5."""
    none = record.variant("none")[0]
    base, paper = record.expected("baseline", none), record.expectations["baseline"]["claim"].split()[-1]
    base_at = congestion(record, none)
    facts = {"paper": paper, "none": f"{base['mean']:.3f}", "none_used": used_text(record, none),
             "none_per_vpn": f"{per_vpn(record, none):.2f}", "none_core_drops": f"{base_at['core drops']:.0f}"}
    text = (f"Without control the index is {judged(base)} (paper: {paper}; asked: within 10 %), utilisation "
            f"{facts['none_used']}, core drops {base_at['core drops']:.1f}/s, core queue "
            f"{base_at['core queue']:.1f} packets.\n\n")
    overview = []
    all_cells = []
    for reading in READINGS:
        cells = record.variant(reading)
        all_cells += cells
        above = [record.expected(f"above-none-{reading}", c) for c in cells]
        used = [record.expected(f"used-{reading}", c) for c in cells]
        corner = [c for c in cells if float(record.setting(c, INCREASE)) == 5.0
                  and float(record.setting(c, DECREASE)) == 0.75][0]
        small = [c for c in cells if float(record.setting(c, INCREASE)) == 0.1
                 and float(record.setting(c, DECREASE)) == 0.1][0]
        best = max(zip(above, cells), key=lambda pair: pair[0]["mean"])
        overview.append([reading, f"{sum(a['pass'] for a in above)} of 16",
                         f"{sum(u['pass'] for u in used)} of 16",
                         number(record.expected(f"above-none-{reading}", small)),
                         number(record.expected(f"above-none-{reading}", corner)),
                         f"a = {record.setting(best[1], INCREASE)}, b = {record.setting(best[1], DECREASE)}: "
                         f"{best[0]['mean']:.3f}"])
        facts[f"above_{reading}"] = f"{sum(a['pass'] for a in above)}"
        facts[f"corner_{reading}"] = f"{record.expected(f'above-none-{reading}', corner)['mean']:.3f}"
    text += table(["reading", "index above no control", "utilisation ≥ 0.95", "a = b = 0.1",
                   "a = 5, b = 0.75", "best cell"], overview)
    fewer = [c for c in all_cells if congestion(record, c)["core drops"] < base_at["core drops"]]
    shorter = [c for c in all_cells if congestion(record, c)["core queue"] < base_at["core queue"]]
    above_per_vpn = [c for c in all_cells if per_vpn(record, c) > per_vpn(record, none)]
    by_a = [f"{sum(c in fewer for c in of_a)} of {len(of_a)} cells at a = {a}"
            for a in sorted({record.setting(c, INCREASE) for c in all_cells}, key=float)
            for of_a in [[c for c in all_cells if record.setting(c, INCREASE) == a]]]
    failed = sorted({record.setting(c, DECREASE) for reading in READINGS for c in record.variant(reading)
                     if not record.expected(f"above-none-{reading}", c)["pass"]}, key=float)
    facts |= {"fewer": f"{len(fewer)}", "shorter": f"{len(shorter)}", "cells": f"{len(all_cells)}",
              "above_per_vpn": f"{len(above_per_vpn)}", "fewer_by_a": ", ".join(by_a),
              "failed_b": " or ".join(failed) or "none",
              "pe_min": f"{min(congestion(record, c)['pe queue'] for c in all_cells):.0f}",
              "pe_max": f"{max(congestion(record, c)['pe queue'] for c in all_cells):.0f}",
              "per_vpn_min": f"{min(per_vpn(record, c) for c in all_cells):.2f}",
              "per_vpn_max": f"{max(per_vpn(record, c) for c in all_cells):.2f}"}
    low_b = [c for c in all_cells if float(record.setting(c, DECREASE)) >= 0.5]
    facts["big_b_used"] = f"{min(record.value(c, 'link.utilisation.net_of_background', BOTTLENECK)['mean'] for c in low_b):.2f}"
    for reading in READINGS:
        rows = []
        for c in [none, *record.variant(reading)]:
            at = congestion(record, c)
            index = base if c == none else record.expected(f"above-none-{reading}", c)
            used = None if c == none else record.expected(f"used-{reading}", c)
            rows.append(["none" if c == none else record.setting(c, INCREASE),
                         "none" if c == none else record.setting(c, DECREASE),
                         number(index) + ("" if c == none else f" {verdict(index)}"),
                         facts["none_used"] if c == none else judged(used),
                         f"{per_vpn(record, c):.3f}", f"{record.value(c, 'fairness.intra_vpn.whole_run')['mean']:.3f}",
                         f"{at['core drops']:.1f}", f"{at['core queue']:.1f}",
                         f"{at['pe drops']:.1f}", f"{at['pe queue']:.0f}"])
        text += f"\n**{reading}**\n\n" + table(
            ["a", "b", "index, 10–50 s", "utilisation", "per VPN", "whole run", "core drops/s",
             "core queue", "PE drops/s", "PE queues"], rows, left=2)
    text += ("\nIndex: Jain's, pooled over all TCP flows, in bins of 1 s. Per VPN: the same inside each VPN, mean of "
             "the four. Whole run: pooled, of each flow's mean over 5–50 s. Queues in packets; PE queues: the four "
             "together. These, drops, queues and "
             "the utilisation without control are means over 5–50 s.\n")
    for file in PICTURES[record.name].values():
        text += "\n" + picture(file, file)
    return text, facts


def used_text(record: Record, cell: int) -> str:
    return number(record.value(cell, "link.utilisation.net_of_background", BOTTLENECK))


def parking_lot(record: Record) -> tuple:
    """Figure 7."""
    rows, shares, facts = [], [], {}
    rates = {"B3-10": (3.5, 10.5, 3.5, 3.5), "B3-20": (3.5, 10.5, 3.5, 10.5), "B3-30": (3.5, 10.5, 3.5, 17.5)}
    for cell, entry in enumerate(record.cells):
        name = entry["variant"]
        trip = record.value(cell, "vpn.round_trip", "vpn1")
        rows.append([name.replace("B3-", ""), "> 0.95", judged(record.expected("fair", cell)),
                     "≤ 10 s", seconds(record.expected("converged", cell)),
                     " ".join(judged(record.expected(f"used-link{k}", cell), 2).replace(" ± 0.00", "") for k in (1, 2, 3)),
                     "0.312" if name == "B3-10" else "", number(trip)])
        got = [record.late("throughput", f"vpn{k}, {name}") for k in (1, 2, 3, 4)]
        shares.append([name.replace("B3-", "")] + [f"{g:.2f} of {fair}" for g, fair in zip(got, rates[name])])
        facts[f"trip_{name}"] = f"{trip['mean']:.2f}"
        facts[f"f_{name}"] = f"{record.expected('fair', cell)['mean']:.3f}"
        facts[f"vpn1_{name}"] = f"{got[0] / rates[name][0]:.0%}".replace("%", " %")
    text = table(["B₃, Mbit/s", "paper: F", "F, 15–50 s", "paper: converged", "F stays ≥ 0.95 from",
                  "utilisation of links 1, 2, 3", "paper: round trip of VPN 1, s", "ours"], rows)
    text += "\n" + picture("fig7-fairness", "Inter-VPN fairness over time, a line per B₃")
    text += "\nMbit/s of each VPN over 40–50 s, of its max-min share of what the background leaves:\n\n"
    text += table(["B₃", "VPN 1", "VPN 2", "VPN 3", "VPN 4"], shares)
    return text, facts


def jain(values: list) -> float:
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def uncontrolled(record: Record) -> tuple:
    """No control, and the peers of bench/sim in the same setting."""
    rows, shares, facts = [], [], {}
    paper = {"2": "0.748", "10": "0.604"}
    for cell in range(len(record.cells)):
        count = record.setting(cell, "flow.tcp*.count")
        index = record.expected(f"baseline-{count}", cell) if count in paper else None
        rows.append([count, paper.get(count, "·"), judged(index), number(record.value(cell, "fairness.intra_vpn")),
                     f"{record.value(cell, 'fairness.intra_vpn.whole_run')['mean']:.3f}",
                     f"{per_vpn(record, cell):.3f}", used_text(record, cell)])
        if index:
            facts[f"index{count}"] = f"{index['mean']:.2f}"
            rates = [record.value(cell, "vpn.throughput", f"vpn{k}")["mean"] / 1e6 for k in (1, 2, 3, 4)]
            shares.append([f"{count}, netstage", *(f"{rate:.2f}" for rate in rates), f"{jain(rates):.2f}"])
            facts[f"vpns{count}"] = f"{jain(rates):.2f}"
            for peer, runs in json.loads(REFERENCE.read_text())["cases"][f"4x{count}"]["peers"].items():
                rates = [statistics.mean(vpn) for vpn in zip(*runs["vpn_mbps"])]
                shares.append([f"{count}, {peer} ({runs['version']})", *(f"{rate:.2f}" for rate in rates),
                               f"{jain(rates):.2f}"])
                facts[f"{peer}{count}"] = f"{jain(rates):.2f}"
    text = table(["flows per VPN", "paper: index", "index, 10–50 s", "index, 5–50 s", "whole run", "per VPN",
                  "utilisation"], rows)
    text += "\nMbit/s of each VPN over 5–50 s, and Jain's index of the four, beside the peers of `make bench-sim`:\n\n"
    return text + table(["flows per VPN", "VPN 1", "VPN 2", "VPN 3", "VPN 4", "index of the VPNs"], shares), facts


FIGURES = {
    "fig2": ("Figure 2: inter-VPN fairness, b₁ = 0.1", inter_vpn),
    "fig3": ("Figure 3: inter-VPN fairness, b₁ = 0.25", inter_vpn),
    "fig4": ("Figure 4: intra-VPN fairness, 2 TCP flows in each VPN", intra_vpn),
    "fig5": ("Figure 5: intra-VPN fairness, 10 TCP flows in each VPN", intra_vpn),
    "fig7": ("Figure 7: three bottlenecks in a row", parking_lot),
    "no-control": ("Section 3.1 without control", uncontrolled),
}


# The page

def notes() -> dict:
    """Sections of the notes, by figure."""
    parts = re.split(r"^## (\S+)\n", NOTES.read_text(), flags=re.MULTILINE)
    return {name: text.strip() + "\n" for name, text in zip(parts[1::2], parts[2::2])}


def fill(text: str, facts: dict) -> str:
    """Puts a record's numbers in the notes; a name no record knows is an error."""
    return re.sub(r"\{([\w.-]+)\}", lambda found: facts[found[1]], text)


def verdicts(records: list) -> str:
    rows = []
    for record in records:
        for name, expectation in record.expectations.items():
            held = sum(cell["pass"] for cell in expectation["cells"])
            rows.append([record.name, name, f"{expectation['metric']} {expectation['condition']}",
                         f"{held} of {len(expectation['cells'])}", "✓" if expectation["pass"] else "✗"])
    return table(["scenario", "expectation", "asked", "cells that hold it", ""], rows, left=3)


def machine(records: list) -> str:
    one = records[0].environment
    kernel = re.match(r"(\w+ )?\d+\.\d+", one["kernel"])[0]
    runs = sum(r.environment["runs"] + r.environment["resumed_runs"] for r in records)
    wall = sum(r.environment["wall_seconds"] for r in records)
    cpu = sum(r.environment["cpu_seconds"] for r in records)
    return (f"{records[0].data['tool']}, stage `{records[0].data['stage']}`; {one['cpu']}, {one['cores']} cores, "
            f"{kernel}. {runs} runs of 50 simulated seconds took\n{wall:.0f} s ({cpu:.0f} s of CPU time). "
            "Only these times depend on the machine: the same seeds give the same bytes elsewhere.")


def page(records: list) -> str:
    explained = notes()
    parts = [f"""# Results against the I2VFC paper

Written by `make figures`, which runs `scenarios/papers/i2vfc/*.toml`; do not edit (the text comes from
`i2vfc.notes.md`).

{machine(records)}

Values are means over {records[0].data['repeat']} runs (seeds {records[0].data['seed']}–{records[0].data['seed'] + records[0].data['repeat'] - 1}) with their 95 % confidence interval. ✓ and ✗ say
whether the scenario's expectation holds. Utilisation is the VPNs' share of what the background leaves of the
bottleneck. The mechanism and its defaults are in [../i2vfc.md](../i2vfc.md); one set of defaults serves every figure.
"""]
    if "summary" in explained:
        parts.append(explained["summary"])
    for record in records:
        title, write = FIGURES[record.name]
        text, facts = write(record)
        parts.append(f"## {title}\n\n`netstage run scenarios/papers/i2vfc/{record.name}.toml`\n\n{text}")
        if record.name in explained:
            parts.append("### What differs, and why\n\n" + fill(explained[record.name], facts))
    parts.append("## Every expectation\n\n" + verdicts(records))
    return "\n".join(parts)


# Variations of the defaults

VARIATIONS = {
    "defaults": [],
    **{f"`initial_window={w}`": [f"initial_window={w}"] for w in (50, 75, 125, 150)},
    "`pacing=false`": ["pacing=false"],
    "`pacing=false`, `initial_window=75`": ["pacing=false", "initial_window=75"],
    '`loss_measure="drop-ratio"`': ['loss_measure="drop-ratio"'],
    '`queue="64 packets"`': ['queue="64 packets"'],
    '`queue="192 packets"`': ['queue="192 packets"'],
    "`report_every=16`": ["report_every=16"],
    '`reference="nominal"`': ['reference="nominal"'],
}


def defaults(program: str) -> None:
    """F of Figures 2, 3 and 7 with one default changed at a time."""
    rows = []
    for name, settings in VARIATIONS.items():
        row, used = [name], []
        for figure in ("fig2", "fig3", "fig7"):
            with tempfile.TemporaryDirectory() as scratch:
                out = pathlib.Path(scratch) / figure
                changes = [f"--set=vpn.*.control.{setting}" for setting in settings]
                if "nominal" in name:
                    changes.append('--set=vpn.vpn1.control.decrease="from-weight"')
                command = [program, "run", f"scenarios/papers/i2vfc/{figure}.toml", "--out", out, *changes]
                done = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=RESULTS.parent.parent)
                if done.returncode not in (0, 3):
                    sys.exit(done.returncode)
                record = Record(out)
            row.append(" ".join(f"{cell['mean']:.3f}" for cell in record.expectations["fair"]["cells"]))
            used += [cell["mean"] for expectation in record.expectations.values()
                     if expectation["name"].startswith("used") for cell in expectation["cells"]]
        rows.append([*row, f"{min(used):.2f}"])
    (RESULTS / "i2vfc-defaults.md").write_text(
        "# Figures 2, 3 and 7 with one default changed at a time\n\n"
        "Written by `make figures`. A row is `netstage run scenarios/papers/i2vfc/FIGURE.toml` with "
        "`--set 'vpn.*.control.NAME=VALUE'`\n(nominal: and `--set 'vpn.vpn1.control.decrease=\"from-weight\"'`). F is the mean "
        "over ten runs and 10–50 s (Figure 7:\n15–50 s); used is the lowest utilisation of all these cells. "
        "[i2vfc.md](i2vfc.md) has the intervals, [../i2vfc.md](../i2vfc.md)\nwhat follows.\n\n"
        + table(["", "Figure 2, a = 0.01, 0.1, 1", "Figure 3, the same", "Figure 7, B₃ = 10, 20, 30", "used"], rows))
    print("wrote docs/results/i2vfc-defaults.md")


def main() -> int:
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, folders = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:]
    if folders == ["--defaults"]:
        defaults(program)
        return 0
    found = {record.name: record for record in map(Record, map(pathlib.Path, folders))}
    if unknown := found.keys() - FIGURES.keys():
        print(f"results.py knows no figure called {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    records = [found[name] for name in FIGURES if name in found]
    text = page(records)
    for record in records:
        draw(program, record.folder, PICTURES.get(record.name, {}), RESULTS)
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(RESULTS.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
