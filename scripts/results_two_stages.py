#!/usr/bin/env python3
"""Writes docs/results/two-stages.md: the throughput of every flow group, simulated and on real packets.

    scripts/results_two_stages.py FOLDER    # FOLDER/SCENARIO/{sim,emu,linux}

`linux` is the simulator, where a scenario has TCP, asked for losses found by RACK, ACKs held back 40 ms, and `linux-cubic` for
`cubic`.

Numbers come from the records alone; a scenario whose records are missing leaves its part empty. What
explains them is in docs/results/two-stages.notes.md.
"""

import json
import pathlib
import sys

from results_page import table, write

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/results/two-stages.md"
SCENARIOS = ["two-hosts", "queues", "link-failure", "traffic-patterns", "tcp-flavours", "random-loss",
             "applications", "no-control"]
# Above this share of packets lost, and beyond this difference, the goal says nothing and is missed.
LITTLE_LOSS, CLOSE = 0.01, 0.05


def load(folder: pathlib.Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


def rate(entry: dict) -> str:
    value = entry["mean"]
    unit, scale = ("M", 1e6) if value >= 1e6 else ("k", 1e3)
    spread = (entry["high"] - entry["low"]) / 2 if "low" in entry else 0
    return f"{value / scale:.3f}" + (f" ± {spread / scale:.3f}" if spread else "") + f" {unit}bit/s"


def throughputs(cell: dict) -> dict:
    return {entry["subject"]: entry for entry in cell["summary"] if entry["metric"] == "flow.throughput"}


def label(cell: dict) -> str:
    settings = [f"{path.split('.', 1)[1]} = {value}" for path, value in cell["settings"]]
    return ", ".join(([cell["variant"]] if cell["variant"] else []) + settings)


class Comparison:
    def __init__(self, folder: pathlib.Path):
        self.sim, self.emu = load(folder / "sim", "record"), load(folder / "emu", "record")
        self.environment = load(folder / "emu", "environment")
        self.rows, self.differences = [], []
        self.linux = load(folder / "linux", "record") if (folder / "linux/record.json").exists() else None
        like_linux = self.linux["cells"] if self.linux else [None] * len(self.sim["cells"])
        for simulated, emulated, alike in zip(self.sim["cells"], self.emu["cells"], like_linux, strict=True):
            loss = emulated["totals"]["lost"] / max(emulated["totals"]["sent"], 1)
            there = throughputs(emulated)
            for group, entry in throughputs(simulated).items():
                real = there.get(group, {}).get("mean")
                if not entry["mean"] or real is None:
                    continue
                entries = [entry] + ([throughputs(alike)[group]] if alike else [])
                off = [real / each["mean"] - 1 for each in entries]
                if loss < LITTLE_LOSS:
                    self.differences.append((abs(off[0]), abs(off[-1])))
                self.rows.append([label(simulated), group, rate(there[group]),
                                  *(text for each, by in zip(entries, off) for text in (rate(each), f"{by * 100:+.1f} %")),
                                  f"{loss * 100:.2f} %"])

    def text(self) -> str:
        runs = f"Runs of each cell: {self.emu['repeat']}.\n\n"
        like_linux = ["sim like Linux", "emu to it"] if self.linux else []
        lines = table(["cell", "flows", "emu", "sim", "emu to it", *like_linux, "lost"], self.rows, left=2)
        void = self.emu.get("void", [])
        verdict = "".join(f"\n**Void** on real packets: {reason}\n" for reason in void)
        told = self.emu.get("differences", [])
        return runs + lines + verdict + ("\nThe record says: " + "; ".join(told) + ".\n" if told else "")


def main():
    folder = pathlib.Path(sys.argv[1])
    found = {name: Comparison(folder / name) for name in SCENARIOS if (folder / name / "emu/record.json").exists()}
    all_of = [difference for comparison in found.values() for difference in comparison.differences]
    close, closer = (sum(off[way] <= CLOSE for off in all_of) for way in (0, 1))
    environment = next(iter(found.values())).environment
    parts = {name: found[name].text() if name in found else "Not run.\n" for name in SCENARIOS}
    parts["machine"] = f"Machine: {environment['cpu']}, {environment['cores']} cores, {environment['kernel']}.\n"
    parts["verdict"] = (f"Of {len(all_of)} groups of flows in cells that lost less than {LITTLE_LOSS:.0%} of their packets, "
                        f"{close} agree within {CLOSE:.0%}, and {closer} where the simulator's TCP is asked to be like Linux'.\n")
    write(PAGE, parts)


main()
