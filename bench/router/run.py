#!/usr/bin/env python3
"""What routers carry, into docs/results/mpls-ix.md and the pictures beside it. README.md says how it is measured.

    bench/router/run.py                    # an hour, on a machine that does nothing else; as root
    bench/router/run.py --trial 60 --step 1 --search 2      # as the paper has it: a day
    bench/router/run.py --parts long --routers              # a part again; the others as they were measured last
    bench/router/run.py --parts            # the page again, from what was measured last
"""

import argparse
import pathlib
import signal
import subprocess
import sys

BENCH = pathlib.Path(__file__).resolve().parent.parent
REPOSITORY = BENCH.parent
sys.path.append(str(REPOSITORY / "scripts"))

from results import Description  # noqa: E402
import under_test  # noqa: E402

TARGET = BENCH / "target" / "router"
RELEASE = REPOSITORY / "target/release"
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
        subprocess.run([RELEASE / "router_rates", "--rounds", str(asked.rounds), "--json", TARGET / "rates.json"],
                       check=True)
        memory = subprocess.run([RELEASE / "forward_rates"], check=True, text=True, stdout=subprocess.PIPE).stdout
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


def main():
    # What was begun is ended, also on a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    asked = arguments()
    measure(asked)
    Description(REPOSITORY / "scenarios/papers/mpls-ix/results.md", str(asked.program)).write()


main()
