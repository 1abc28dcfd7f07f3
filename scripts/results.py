#!/usr/bin/env python3
"""Writes the pages of docs/results from descriptions beside the scenarios.

    scripts/results.py PROGRAM DESCRIPTION...                   # run the scenarios, then write the pages
    scripts/results.py PROGRAM DESCRIPTION... --only [NAME...]  # run only these; keep the other records

docs/results/README.md explains descriptions. Numbers come from `netstage report --json`, pictures from `--svg`.
"""

import argparse
import functools
import html
import json
import math
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "docs/results"
STAGES = ["sim", "emu"]
# Exit codes of runs with a complete record: expectation not met, measurement void. The page shows both.
EXPECTATION, VOID = 3, 5


# Values

class Value(float):
    """A number with its 95 % interval and, for an expectation, its text and verdict; NaN if missing."""

    def __new__(cls, entry: dict, missing: str = "–"):
        mean = entry.get("mean")
        self = super().__new__(cls, math.nan if mean is None else mean)
        self.low, self.high, self.missing = entry.get("low"), entry.get("high"), missing
        self.text, self.passes = entry.get("achieved", ""), entry.get("pass")
        return self


def show(value, spec: str = "") -> str:
    """Formats a value: Python's format, with ± for the interval, bit/s for a rate and ✓ for the verdict."""
    if isinstance(value, (list, tuple)):
        return ", ".join(show(one, spec) for one in value) or "–"
    if not isinstance(value, float):
        return format(value, spec)
    text, high = getattr(value, "text", ""), getattr(value, "high", None)
    if math.isnan(value) and not text:
        return getattr(value, "missing", "–")
    plain = spec.strip("±✓")
    if plain == "bit/s":
        scale, unit = (1e6, "Mbit/s") if value >= 1e6 else (1e3, "kbit/s")
        spread = f" ± {(high - value.low) / 2 / scale:.3f}" if high is not None and high > value.low else ""
        return f"{value / scale:.3f}{spread} {unit}"
    if not text or plain and not math.isnan(value):
        text = format(float(value), plain or "g") + (f" ± {format(high - value, plain)}" if "±" in spec and high is not None else "")
    return text.replace("%", " %") + ((" ✓" if value.passes else " ✗") if "✓" in spec else "")


# Records

class Cell:
    """A cell of a sweep. All values are missing if the record or the cell is."""

    def __init__(self, record: "Record", index: int, data: dict):
        self.record, self.index, self.data = record, index, data
        self.variant, self.settings = data.get("variant", ""), dict(data.get("settings", []))
        start, end = data.get("measured_ns", (0, 0))
        self.seconds = (end - start) / 1e9
        self.name = self._label(", ", lambda path: path.rsplit(".", 1)[-1], " = ")

    def __bool__(self) -> bool:
        return bool(self.data)

    def _label(self, join: str, name, equals: str) -> str:
        settings = [f"{name(path)}{equals}{value}" for path, value in self.settings.items()]
        return join.join([self.variant] * bool(self.variant) + settings)

    def setting(self, name: str) -> str:
        """A swept value, by its path or the last part of the path."""
        return next((value for path, value in self.settings.items() if name in (path, path.rsplit(".", 1)[-1])), "")

    @functools.cached_property
    def _metrics(self) -> dict:
        return {(entry["metric"], entry["subject"]): entry for entry in self.data.get("summary", [])}

    def metric(self, name: str, subject: str = "") -> Value:
        """A metric over the measurement period. The interval of a single run is that of its test."""
        entry = self._metrics.get((name, subject), {})
        if entry.get("high") is None:
            findings = [f for test in self.data.get("tests", []) for f in test["findings"]]
            found = next((f for f in findings if (f["metric"], f["subject"]) == (name, subject)), {})
            entry = entry | {"low": found.get("low"), "high": found.get("high")}
        return Value(entry)

    def subjects(self, metric: str) -> list:
        return [subject for name, subject in self._metrics if name == metric]

    def metrics(self, name: str) -> list:
        """The values of a metric for all subjects."""
        return [value for subject in self.subjects(name) if not math.isnan(value := self.metric(name, subject))]

    def expect(self, name: str) -> Value:
        """The result of an expectation in this cell; · if not applicable."""
        cells = self.record.expectations[name]["cells"] if self.record else []
        return Value(next((c for c in cells if c["cell"] == self.index), {}), "·" if self.record else "–")

    def line(self, figure: str, subject: str = "", since: float = 0, until: float = math.inf) -> list:
        """The values of a figure's line from `since` to `until` seconds."""
        if not self.record:
            return []
        found = next(f for f in self.record.figures if f["name"] == figure)
        names = [", ".join(filter(None, (subject, self.name))), self.name, subject]
        line = next(line for name in names for line in found["series"] if line["name"] == name)
        times = line.get("x") or found["shared_x"]
        return [y for x, y in zip(times, line["y"]) if since <= x < until and y is not None]

    def settles(self, figure: str, above: float) -> str:
        """The time from which a figure's line stays above a bound."""
        values = self.line(figure)
        start = max((i + 1 for i, value in enumerate(values) if value < above), default=0)
        return f"{start * self.data['interval_ns'] / 1e9:g} s" if start < len(values) else "not"

    @property
    def void(self) -> list:
        """The reasons why runs are void."""
        label = self._label(" ", str, "=")
        return [reason for reason in self.record.data.get("void", []) if label in reason]


class Record:
    """A record in the form of `netstage report --json`. False and empty if the folder contains no record."""

    def __init__(self, program: str, folder: pathlib.Path):
        self.name, self.program, self.folder = folder.name, program, folder
        report = {"records": [{"environment": {}, "record": {}}], "figures": []}
        if (folder / "record.json").exists():
            report = json.loads(subprocess.run([program, "report", folder, "--json"], check=True, stdout=subprocess.PIPE).stdout)
        self.figures, self.environment = report["figures"], report["records"][0]["environment"]
        self.data = report["records"][0]["record"]
        self.cells = [Cell(self, index, cell) for index, cell in enumerate(self.data.get("cells", []))]
        self.expectations = {e["name"]: e for e in self.data.get("expectations", [])}

    def __bool__(self) -> bool:
        return bool(self.data)

    def __iter__(self):
        return iter(self.cells)

    def cell(self, which: int | str = 0, **settings: str) -> Cell:
        """A cell by its index, or by its variant and settings."""
        if isinstance(which, int):
            found = self.cells[which:which + 1]
        else:
            found = [c for c in self.variant(which) if all(c.setting(name) == value for name, value in settings.items())]
        return found[0] if found else Cell(self, -1, {})

    def variant(self, name: str) -> list:
        return [cell for cell in self if cell.variant == name]

    def verdicts(self, name: str) -> list:
        """The results of an expectation in all cells where it applies."""
        return [Value(cell) for cell in self.expectations.get(name, {"cells": []})["cells"]]

    def picture(self, figure: str, file: str) -> str:
        """Draws a figure in docs/results and returns the file name."""
        if self:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([self.program, "report", self.folder, "--svg", folder], check=True, stdout=subprocess.DEVNULL)
                shutil.copyfile(pathlib.Path(folder) / f"{figure}.svg", RESULTS / file)
        return file


class Records(dict):
    """The records of a folder by name, read on first use."""

    def __init__(self, program: str, folder: pathlib.Path):
        self.program, self.folder = program, folder

    def __missing__(self, name: str) -> Record:
        return self.setdefault(name, Record(self.program, self.folder / name))

    def names(self) -> list:
        return sorted(file.parent.name for file in self.folder.glob("*/record.json"))


# Descriptions

class Description:
    """The description of a page: scenarios to run, and text with formulas."""

    def __init__(self, path: pathlib.Path, program: str):
        head, self.body = path.read_text().removeprefix("+++\n").split("+++\n", 1)
        self.path, self.program, self.head = path, program, tomllib.loads(head)
        self.page = RESULTS / self.head["page"]
        self.out = REPOSITORY / self.head.get("records", f"out/results/{self.page.stem}")
        self.groups = {name: Records(program, self.out / name) for name in self.head.get("run", {})}

    def run(self, only: list | None):
        """Runs the scenarios of every group, or only the groups and scenarios named in `only`."""
        for group, settings in self.head.get("run", {}).items():
            scenarios = settings.get("scenarios", self.head.get("scenarios", []))
            for scenario in scenarios:
                file = (self.path.parent / f"{scenario}.toml").resolve()
                if only is None or group in only or file.stem in only:
                    options = f"{settings.get('options', '')} {scenarios[scenario] if isinstance(scenarios, dict) else ''}"
                    stage = group if group in STAGES else "sim"
                    run(self.program, file, self.out / group / file.stem, ["--on", stage, *shlex.split(options)])

    def write(self):
        names = {"groups": self.groups, **self.groups, "records": Records(self.program, self.out), "show": show,
                 "mean": mean, "jain": jain, "data": data, "part": part, "machine": machine}
        self.page.write_text(re.sub(r"\n{3,}", "\n\n", filled(self.body.lstrip().splitlines(), names)))
        print(f"wrote {self.page.relative_to(REPOSITORY)}")


def run(program: str, scenario: pathlib.Path, out: pathlib.Path, options: list):
    shutil.rmtree(out, ignore_errors=True)
    command = [program, "run", scenario.relative_to(REPOSITORY), "--out", out, *options]
    code = subprocess.run(command, cwd=REPOSITORY).returncode
    if code not in (0, EXPECTATION, VOID):
        sys.exit(code)


def filled(lines: list, names: dict) -> str:
    """Returns lines of a description with formulas replaced by their values."""
    text, lines = "", iter(lines)
    for line in lines:
        try:
            if found := re.fullmatch(r"\{\{define (\w+)\((.*?)\)\}\}", line):
                names[found[1]] = defined(found[2], list(iter(lambda: next(lines), "{{end}}")), names)
            elif found := re.fullmatch(r"\{\{let (.*)\}\}", line):
                exec(found[1], names)
            else:
                text += repeated(line, names)
        except Exception as error:
            error.add_note(f"in this line of the description: {line}")
            raise
    return text


def defined(arguments: str, block: list, names: dict):
    """Returns a function that fills a block of lines. Its arguments are names in the formulas."""
    def fill(given: dict) -> str:
        return filled(block, {**names, **given}).strip("\n")
    return eval(f"lambda {arguments}: fill(locals())", {"fill": fill})


def repeated(line: str, names: dict) -> str:
    """Returns a filled line, repeated for each item if it starts with `for`."""
    found = re.match(r"\{\{for (.*?) in (.*?)\}\}(?=\{\{|\|)", line)
    if not found:
        return re.sub(r"\{\{(.*?)\}\}", lambda place: formula(place[1], names), line) + "\n"
    variables = [name.strip() for name in found[1].split(",")]
    items = eval(f"[({found[1]},) for {found[1]} in {found[2]}]", names)
    return "".join(repeated(line[found.end():], {**names, **dict(zip(variables, item))}) for item in items)


def formula(text: str, names: dict) -> str:
    expression, spec = re.fullmatch(r"(.+?)(?::([±+,]*(?:[.\d]+[fge%]|bit/s)?✓?))?", text).groups()
    return show(eval(expression, names), spec or "")


# Functions for formulas

def mean(values) -> float:
    return sum(values) / len(values) if values else math.nan


def jain(values) -> float:
    """Jain's index of fairness."""
    values = list(values)
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if values else math.nan


def data(path: str):
    """The contents of a JSON, TOML or text file of the repository; empty if missing."""
    file = REPOSITORY / path
    read = {".json": json.loads, ".toml": tomllib.loads}.get(file.suffix, str)
    return read(file.read_text()) if file.exists() else "" if read is str else {}


def machine(record: Record) -> str:
    found = record.environment
    return f"{found['cpu']}, {found['cores']} cores, {found['kernel']}" if record else "–"


def marks(name: str) -> tuple:
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"


def part(path: str, name: str) -> str:
    """The part of a page between two markers."""
    begin, end = marks(name)
    return (REPOSITORY / path).read_text().split(begin, 1)[1].split(end, 1)[0].rstrip("\n")


# Functions for benchmarks

def mark(page: pathlib.Path, name: str, text: str):
    """Replaces the part of a page between two markers."""
    begin, end = marks(name)
    before, rest = page.read_text().split(begin, 1)
    page.write_text(before + begin + text + end + rest.split(end, 1)[1])


def table(header: list, rows: list, left: int = 1) -> str:
    """A Markdown table. Columns after the first `left` are right-aligned."""
    rule = [":--"] * left + ["--:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, rule, *rows]) + "\n"


# The gallery

GALLERY = """# Gallery

Generated by `make figures` and the other `figures-…` targets; do not edit. Figures of the [results](results), page by page; each links to
the full image. `netstage report RECORD --svg DIR` draws the figures of any record. The report of `netstage run` contains them with zoom and values.
"""
COLUMNS = 3


def gallery():
    """Writes docs/gallery.md with thumbnails of all figures."""
    text = GALLERY
    for page in sorted(RESULTS.glob("*.md")):
        found = page.read_text()
        pictures = dict.fromkeys(re.findall(r"\(([\w.-]+\.svg)\)", found))
        cells = [f'<td><a href="results/{name}"><img src="results/{name}" width="250" alt="{title(name)}"></a></td>'
                 for name in pictures if (RESULTS / name).exists()]
        rows = ["".join(cells[at:at + COLUMNS]) for at in range(0, len(cells), COLUMNS)]
        if rows:
            heading = found.split("\n", 1)[0].removeprefix("# ")
            text += f"\n## [{heading}](results/{page.name})\n\n<table>\n"
            text += "".join(f"<tr>{row}</tr>\n" for row in rows) + "</table>\n"
    (RESULTS.parent / "gallery.md").write_text(text)


def title(picture: str) -> str:
    """The title of an image, which is its first text."""
    found = re.search(r"<text[^>]*>\s*(.*?)\s*</text>", (RESULTS / picture).read_text(), re.DOTALL)
    return html.escape(html.unescape(found[1])) if found else picture


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("descriptions", type=pathlib.Path, nargs="+")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="scenarios or groups to run; without names, run none")
    asked = parser.parse_args()
    for path in asked.descriptions:
        description = Description(path, str(asked.program.resolve()))
        description.run(asked.only)
        description.write()
    gallery()


if __name__ == "__main__":
    main()
