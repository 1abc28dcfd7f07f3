#!/usr/bin/env python3
"""What routers carry, into docs/results/mpls-ix.md and the pictures beside it. README.md says how it is measured.

    bench/router/run.py                    # an hour, on a machine that does nothing else; as root
    bench/router/run.py --trial 60 --step 1 --search 2      # as the paper has it: a day
    bench/router/run.py --parts long --routers              # a part again; the others as they were measured last
    bench/router/run.py --parts            # the page again, from what was measured last
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import tomllib

BENCH = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
sys.path.append(str(REPOSITORY / "scripts"))

from results_page import table, write  # noqa: E402
import under_test  # noqa: E402

TARGET = BENCH / "target" / "router"
RELEASE = REPOSITORY / "target/release"
RESULTS = REPOSITORY / "docs/results"
OPERATIONS = ["ip", "push", "swap", "pop"]
PARTS = ["rates", "tested", "long"]
# Trials as long as the paper's, beside those asked for: whether short ones find the same.
LONG = 60
LONG_OPERATIONS = ["ip", "swap"]
LONG_SIZES = ["46 B", "258 B"]
# A record for each set of operations that one set of routes can serve.
UNDER_TEST = {
    "netstage": [(["ip", "swap", "pop"], under_test.netstage, {}), (["push"], under_test.netstage, {})],
    "Linux": [(["ip"], under_test.linux, {})],
    # It takes no time to live out of a label, and a flow for each network.
    "Open vSwitch": [(["ip", "swap", "pop"], under_test.open_vswitch, {"model": "pipe", "networks": 1_000}),
                     (["push"], under_test.open_vswitch, {"networks": 1_000})],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", type=float, default=10, help="seconds of a trial that decides")
    parser.add_argument("--search", type=float, default=0.5, help="seconds of one that looks for where that is")
    parser.add_argument("--step", type=float, default=5, help="Mbit/s of IP")
    parser.add_argument("--sizes", nargs="*", help="sizes of packets, such as '46 B'")
    parser.add_argument("--rounds", type=int, default=5, help="of the rates side by side")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="what is measured")
    parser.add_argument("--routers", nargs="*", choices=UNDER_TEST, default=list(UNDER_TEST), help="which are put under test")
    parser.add_argument("--program", type=pathlib.Path, default=RELEASE / "netstage", help="the tester, and netstage's router")
    return parser.parse_args()


def measure(asked):
    TARGET.mkdir(parents=True, exist_ok=True)
    if "rates" in asked.parts:
        subprocess.run([RELEASE / "examples/router_rates", "--rounds", str(asked.rounds), "--json", TARGET / "rates.json"],
                       check=True)
        memory = subprocess.run([RELEASE / "examples/forward_rates"], check=True, text=True, stdout=subprocess.PIPE).stdout
        (TARGET / "memory.txt").write_text(memory)
        print(memory)
    if "tested" in asked.parts:
        for router in asked.routers:
            for operations, start, more in UNDER_TEST[router]:
                test(router, operations, asked, record_of(router, operations), start, more)
    if "long" in asked.parts:
        for trial in (asked.trial, LONG):
            of_length = argparse.Namespace(**{**vars(asked), "trial": trial, "sizes": LONG_SIZES})
            test("netstage", LONG_OPERATIONS, of_length, TARGET / f"trials-{trial:g}", under_test.netstage, {})


def test(router: str, operations: list, asked, record: pathlib.Path, start, more: dict):
    with under_test.Bench(asked.program, TARGET) as bench:
        bench.test(router, operations, asked, record, start, **more)


def record_of(router: str, operations: list) -> pathlib.Path:
    return TARGET / f"{router.lower().replace(' ', '-')}-{'-'.join(operations)}"


def rates() -> str:
    ways = json.loads((TARGET / "rates.json").read_text())["ways"]
    lengths = sorted({way["bytes"] for way in ways})
    names = list(dict.fromkeys(way["way"] for way in ways))
    of = {(way["way"], way["bytes"]): way["median"] for way in ways}
    kernel = next(name for name in names if name.startswith("kernel"))
    rows = []
    for name in names:
        row = [name]
        for length in lengths:
            rate = of[name, length]
            is_router = names.index(name) >= names.index(kernel)
            row += [f"{rate / 1e6:.2f}", f"{rate / of[kernel, length]:.2f}" if is_router else ""]
        rows.append(row)
    return table([""] + [text for length in lengths for text in (f"{length} B, Mpps", "against the kernel")], rows)


def ratios() -> str:
    goals = json.loads((TARGET / "rates.json").read_text())["goals"]
    lengths = sorted({goal["bytes"] for goal in goals})
    pairs = list(dict.fromkeys((goal["of"], goal["to"], goal["least"]) for goal in goals))
    of = {(goal["of"], goal["to"], goal["bytes"]): goal["ratio"] for goal in goals}
    rows = []
    for one, other, least in pairs:
        found = [of[one, other, length] for length in lengths]
        rows.append([f"{one} to {other}", f"{least:g}", *(f"{ratio:.2f}" if ratio >= least else f"**{ratio:.2f}**"
                                                          for ratio in found)])
    return table(["ratio, the median of those within rounds; bold: missed", "goal"] + [f"{length} B" for length in lengths], rows)


def memory() -> str:
    found = re.findall(r"^(\w+) +([\d.]+) Mpps +\(([\d.]+) to ([\d.]+)\)", (TARGET / "memory.txt").read_text(), re.M)
    return table(["in memory", "Mpps", "from", "to"], found)


class Tested:
    """What records have of one router, by operation and size."""

    def __init__(self, records: list):
        self.cells, self.asked, self.description = {}, "", ""
        for folder in records:
            file = folder / "record.json"
            if not file.exists():
                continue
            record = json.loads(file.read_text())
            self.description = record["description"]
            tester = tomllib.loads(folder.with_name(f"{folder.name}.toml").read_text())["tester"]
            self.asked = (f"Trials of {short(tester['trial'])} decided, in steps of {short(tester['step'])} of IP; "
                          f"{short(tester['search'])} looked for where.")
            for cell in record["cells"]:
                settings = dict(cell["settings"])
                for entry in cell["summary"]:
                    self.cells[settings["operation"], settings["size"], entry["metric"]] = entry["mean"]

    def of(self, operation: str, size: str, metric: str):
        return self.cells.get((operation, size, metric))


def short(quantity: str) -> str:
    number, unit = quantity.split()
    return f"{float(number):g} {unit}"


def of_router(router: str) -> Tested:
    return Tested([record_of(router, operations) for operations, _, _ in UNDER_TEST[router]])


def long_trials() -> str:
    """A row for each operation and size that was tested by trials of several lengths, and what each length found."""
    folders = sorted(TARGET.glob("trials-*/"), key=lambda folder: float(folder.name.split("-")[1]))
    if not folders:
        return "Not measured yet.\n"
    tested = [Tested([folder]) for folder in folders]
    rows = []
    for operation in LONG_OPERATIONS:
        for size in LONG_SIZES:
            shares = [one.of(operation, size, "test.line_share") for one in tested]
            rows.append([operation.upper(), size, *("–" if share is None else f"{share * 100:.1f}" for share in shares)])
    return table(["", ""] + [f"trials of {folder.name.split('-')[1]} s, %" for folder in folders], rows, left=2)


def by_size(metric: str, show) -> str:
    """A row for each router and operation, a column for each size."""
    tested = {router: of_router(router) for router in UNDER_TEST}
    sizes = sorted({size for one in tested.values() for _, size, _ in one.cells}, key=lambda size: int(size.split()[0]))
    rows = []
    for router, one in tested.items():
        for operation in OPERATIONS:
            values = [one.of(operation, size, metric) for size in sizes]
            if any(value is not None for value in values):
                rows.append([router, operation.upper(), *("–" if value is None else show(value) for value in values)])
    return table(["", ""] + sizes, rows, left=2)


def pictures(program: pathlib.Path):
    for router, sets in UNDER_TEST.items():
        for operations, _, _ in sets:
            record = record_of(router, operations)
            if not (record / "record.json").exists():
                continue
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([program, "report", record, "--svg", folder], check=True, stdout=subprocess.DEVNULL)
                for name in ("share", "delay"):
                    picture = pathlib.Path(folder) / f"{name}.svg"
                    if picture.exists():
                        shutil.copy(picture, RESULTS / f"mpls-ix-{record.name}-{name}.svg")


def page(program: pathlib.Path):
    tested = of_router("netstage")
    others = {router: of_router(router) for router in UNDER_TEST}
    said = " ".join([tested.asked, *(f"{router}: {one.asked}" for router, one in others.items()
                                     if one.asked not in ("", tested.asked)), tested.description])
    write(RESULTS / "mpls-ix.md", {
        "rates": rates(), "ratios": ratios(), "memory": memory(), "asked": textwrap.fill(said, 136) + "\n",
        "long": long_trials(),
        "share": by_size("test.line_share", lambda share: f"{share * 100:.1f}"),
        "frames": by_size("test.frame_rate", lambda rate: f"{rate / 1e3:.0f}"),
        "delay": by_size("test.latency", lambda delay: f"{delay * 1e6:.1f}"),
        "median": by_size("test.latency.median", lambda delay: f"{delay * 1e6:.1f}"),
        "tail": by_size("test.latency.p999", lambda delay: f"{delay * 1e6:.0f}"),
    })
    pictures(program)


def main():
    # What was begun is ended, also on a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = arguments()
    measure(asked)
    page(asked.program)


main()
