#!/usr/bin/env python3
"""Measures the throughput of routers, and writes docs/results/mpls-ix.md and its figures. README.md describes the method.

    bench/router/run.py                    # an hour, on an idle machine; as root
    bench/router/run.py --trial 60 --step 1 --search 2      # trial lengths of the paper: a day
    bench/router/run.py --parts long --routers              # one part; the others keep their last results
    bench/router/run.py --parts            # only the page, from the last results
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
# Trials of the paper's length in addition, to check that short ones give the same result.
LONG = 60
LONG_OPERATIONS = ["ip", "swap"]
LONG_SIZES = ["46 B", "258 B"]
# One record for each set of operations that a common set of routes serves.
UNDER_TEST = {
    "netstage": [(["ip", "swap", "pop"], under_test.netstage, {}), (["push"], under_test.netstage, {})],
    "netstage RSVP-TE": [(["swap", "pop"], under_test.netstage_rsvp, {"by": "rsvp-te"}), (["push"], under_test.netstage_rsvp, {"by": "rsvp-te"})],
    "Linux": [(["ip"], under_test.linux, {})],
    # It cannot copy the TTL out of a label, and needs one flow per network.
    "Open vSwitch": [(["ip", "swap", "pop"], under_test.open_vswitch, {"model": "pipe", "networks": 1_000}),
                     (["push"], under_test.open_vswitch, {"networks": 1_000})],
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trial", type=float, default=10, help="seconds of a final trial")
    parser.add_argument("--search", type=float, default=0.5, help="seconds of a search trial")
    parser.add_argument("--step", type=float, default=5, help="Mbit/s of IP")
    parser.add_argument("--sizes", nargs="*", help="sizes of packets, such as '46 B'")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the rate comparison")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="parts to measure")
    parser.add_argument("--routers", nargs="*", choices=UNDER_TEST, default=list(UNDER_TEST), help="routers to test")
    parser.add_argument("--program", type=pathlib.Path, default=RELEASE / "netstage", help="program used as tester and as netstage's router")
    return parser.parse_args()


def measure(options):
    TARGET.mkdir(parents=True, exist_ok=True)
    if "rates" in options.parts:
        subprocess.run([RELEASE / "router_rates", "--rounds", str(options.rounds), "--json", TARGET / "rates.json"],
                       check=True)
        memory = subprocess.run([RELEASE / "forward_rates"], check=True, text=True, stdout=subprocess.PIPE).stdout
        (TARGET / "memory.txt").write_text(memory)
        print(memory)
    if "tested" in options.parts:
        for router in options.routers:
            for operations, start, more in UNDER_TEST[router]:
                test(router, operations, options, record_of(router, operations), start, more)
    if "long" in options.parts:
        for trial in (options.trial, LONG):
            settings = argparse.Namespace(**{**vars(options), "trial": trial, "sizes": LONG_SIZES})
            test("netstage", LONG_OPERATIONS, settings, TARGET / f"trials-{trial:g}", under_test.netstage, {})


def test(router: str, operations: list, options, record: pathlib.Path, start, more: dict):
    with under_test.Bench(options.program, TARGET) as bench:
        bench.test(router, operations, options, record, start, **more)


def record_of(router: str, operations: list) -> pathlib.Path:
    return TARGET / f"{router.lower().replace(' ', '-')}-{'-'.join(operations)}"


def main():
    # Clean up also on a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = arguments()
    measure(options)
    Description(REPOSITORY / "scenarios/papers/mpls-ix/results.md", str(options.program)).write()


main()
