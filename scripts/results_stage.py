#!/usr/bin/env python3
"""Writes docs/results/stage.md, and the pictures beside it, from the records of the STAGE paper's scenarios.

    scripts/results_stage.py PROGRAM FOLDER    # FOLDER/{sim,emu}/{line,rfc2544,bit-errors,backbone}

Numbers come from the records alone; a record that is missing leaves its column empty. What explains
them is in docs/results/stage.notes.md, a section per part.
"""

import json
import pathlib
import sys

from results_page import draw, table, write

RESULTS = pathlib.Path(__file__).resolve().parent.parent / "docs/results"
STAGES = ["sim", "emu"]
LINES = {"a-clean": "Figure 2: 0 ms, no errors", "b-long": "Figure 3: 100 ms, no errors",
         "c-noisy": "Figure 4: 100 ms, BER 1e-6"}
# The paper gives its figures as bars without numbers: what its text says of them stands here.
SAID = {
    ("a-clean", "ftp"): "", ("b-long", "ftp"): "at most 1.28 Mbit/s", ("c-noisy", "ftp"): "less than in Figure 3",
    ("a-clean", "tcp"): "closest to FTP", ("b-long", "tcp"): "closest to FTP", ("c-noisy", "tcp"): "closest to FTP",
}
TABLE_1 = {"udp4": (.505, .489, .509), "udp2": (.0107, .0104, .00801), "udp1": (0, 0, .00936)}
PICTURES = {
    "line": {"ftp": "stage-ftp", "tcp": "stage-tcp", "udp": "stage-udp", "loss": "stage-loss"},
    "rfc2544": {"rfc2544": "stage-rfc2544"},
}


class Record:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.data = json.loads((folder / "record.json").read_text())
        self.environment = json.loads((folder / "environment.json").read_text())

    def cell(self, variant: str):
        return next((c for c in self.data["cells"] if c["variant"] == variant), None)

    def mean(self, variant: str, metric: str, subject: str):
        for entry in (self.cell(variant) or {"summary": []})["summary"]:
            if entry["metric"] == metric and entry["subject"] == subject:
                return entry["mean"]
        return None

    def bounds(self, variant: str, metric: str, subject: str):
        for test in (self.cell(variant) or {"tests": []})["tests"]:
            for found in test["findings"]:
                if found["metric"] == metric and found["subject"] == subject:
                    return found.get("low"), found.get("high")
        return None, None

    def judged(self) -> tuple:
        cells = [c for e in self.data["expectations"] for c in e["cells"]]
        return sum(c["pass"] for c in cells), len(cells)


def rate(value) -> str:
    if value is None:
        return "–"
    return f"{value / 1e6:.3f}" if value >= 1e5 else f"{value / 1e6:.4f}"


def ratio(value, low=None, high=None) -> str:
    if value is None:
        return "–"
    text = f"{value:.3g}"
    return text if low is None or high is None else f"{text} ({low:.3g} – {high:.3g})"


def of(records: dict, stage: str, name: str, variant: str, metric: str, subject: str):
    record = records.get((stage, name))
    return record and record.mean(variant, metric, subject)


def figures(records: dict) -> str:
    text = ""
    asked = [("FTP, 3 MB", "line", "app.transfer_rate", "ftp"), ("TCP, 3 MB", "line", "test.tcp_throughput", "tcp")]
    asked += [(f"UDP, {n} Mbit/s offered", "line", "test.delivered", f"udp{n}") for n in (1, 2, 4)]
    asked += [(f"RFC 2544 by ICMP, {n} s trials", "rfc2544", "test.throughput", f"rfc2544-{n}s") for n in (5, 10, 20)]
    asked += [("UDP swept: where it tops out", "rfc2544", "test.plateau", "plateau")]
    for variant, title in LINES.items():
        rows = []
        for label, name, metric, subject in asked:
            values = [rate(of(records, stage, name, variant, metric, subject)) for stage in STAGES]
            rows.append([label, SAID.get((variant, subject), ""), *values])
        text += f"**{title}**, Mbit/s\n\n" + table(["", "paper's text", *STAGES], rows) + "\n"
    return text


def losses(records: dict) -> str:
    rows = []
    for subject, paper in TABLE_1.items():
        for (variant, title), printed in zip(LINES.items(), paper):
            row = [f"{subject[3:]} Mbit/s, {title.split(': ')[1]}", f"{printed:g}"]
            for stage in STAGES:
                record = records.get((stage, "line"))
                value = record and record.mean(variant, "test.loss_ratio", subject)
                row.append(ratio(value, *record.bounds(variant, "test.loss_ratio", subject)) if record else "–")
            rows.append(row)
    return table(["UDP loss ratio (95 %)", "paper", *STAGES], rows)


def bit_errors(records: dict) -> str:
    rows = []
    for subject, label in (("by-loss", "from loss against size"), ("by-payload", "from payloads compared")):
        row = [label, "1e-06"]
        for stage in STAGES:
            record = records.get((stage, "bit-errors"))
            value = record and record.mean("", "test.bit_error_rate", subject)
            row.append(ratio(value, *record.bounds("", "test.bit_error_rate", subject)) if record else "–")
        rows.append(row)
    return table(["bit error rate (95 %)", "set", *STAGES], rows)


def backbone(records: dict) -> str:
    asked = [("backbone in use", "link.utilisation", "backbone.reverse", 1, 2), ("call, MOS", "app.mos", "call", 1, 2),
             ("call, delay, ms", "app.delay", "call", 1e3, 1), ("game, delay, ms", "app.delay", "game", 1e3, 1),
             ("name lookup, ms", "app.transaction_time", "names", 1e3, 1),
             ("page, s", "app.page_load_time", "web", 1, 2),
             ("video, start, s", "app.startup_delay", "video", 1, 2),
             ("video, standing still", "app.stall_ratio", "video", 1, 3),
             ("video, Mbit/s", "app.bit_rate", "video", 1e-6, 2),
             ("each of two bulk transfers, Mbit/s", "flow.throughput", "files", 1e-6, 2),
             ("everybody else, Mbit/s", "flow.throughput", "crowd", 1e-6, 0)]
    variants = [c["variant"] for c in records[("sim", "backbone")].data["cells"]] if ("sim", "backbone") in records else []
    rows = []
    for label, metric, subject, scale, digits in asked:
        row = [label]
        for variant in variants:
            for stage in STAGES:
                value = of(records, stage, "backbone", variant, metric, subject)
                row.append("–" if value is None else f"{value * scale:.{digits}f}")
        rows.append(row)
    header = [""] + [f"{v.split('-')[1]}, {s}" for v in variants for s in STAGES]
    return table(header, rows)


def machine(records: dict) -> str:
    lines = []
    for (stage, name), record in sorted(records.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
        met, asked = record.judged()
        void = len(record.data["void"])
        seconds = record.environment.get("wall_seconds")
        took = f"{seconds:.0f} s" if seconds is not None else "–"
        lines.append([f"`netstage run scenarios/papers/stage/{name}.toml --on {stage}`", took,
                      f"{met} of {asked}", void or ""])
    return table(["command", "took", "expectations met, over all lines", "void"], lines)


def pictures(program: str, records: dict):
    for name, wanted in PICTURES.items():
        record = records.get(("emu", name)) or records.get(("sim", name))
        if record is None:
            continue
        draw(program, record.folder, wanted, RESULTS)


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    records = {}
    for stage in STAGES:
        for name in ("line", "rfc2544", "bit-errors", "backbone"):
            if (folder / stage / name / "record.json").exists():
                records[stage, name] = Record(folder / stage / name)
    parts = {"commands": machine(records), "figures": figures(records), "losses": losses(records),
             "bit-errors": bit_errors(records), "backbone": backbone(records)}
    write(RESULTS / "stage.md", parts)
    pictures(program, records)


main()
