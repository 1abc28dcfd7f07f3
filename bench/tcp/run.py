#!/usr/bin/env python3
"""What watching TCP costs: nanoseconds of `netstage tcp watch` at each record, in the kernel and beyond, records lost at
a high rate of segments, and throughput with an observer and without: netstage, ss, bpftrace, perf. README.md says how;
the tables go there and into docs/results/vpn-tcp.md. Needs root; everything is gone when it ends."""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.append(str(REPOSITORY / "scripts"))

from observers import TRACING, comparison  # noqa: E402
from records import costs  # noqa: E402
from results import mark  # noqa: E402

PAGES = [HERE / "README.md", REPOSITORY / "docs/results/vpn-tcp.md"]
EXIT_FAILED, EXIT_MISSING = 1, 4


@contextlib.contextmanager
def tracing():
    """The kernel's trace files, mounted as long as it takes."""
    mounted = TRACING.exists() and not any(TRACING.iterdir())
    mounted = mounted and subprocess.run(["mount", "-t", "tracefs", "none", str(TRACING)], check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", str(TRACING)], check=False)


def machine():
    model = next(line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                 if line.startswith("model name"))
    return f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}; a load of {os.getloadavg()[0]:.1f} as it began."


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netstage", default=str(REPOSITORY / "target/release/netstage"))
    parser.add_argument("--budget", type=float, default=170, help="seconds for pairs of transfers")
    parser.add_argument("--seconds", type=float, default=0.4, help="of a slice")
    parser.add_argument("--look", action="store_true", help="print the tables and write no page")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench-tcp needs root", file=sys.stderr)
        return EXIT_MISSING
    # A slice begins and ends when it should, however busy the processors are; whom it looks at is no part of that.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    # What was begun ends with us, asked by whichever signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    parts = [machine() + "\n"]
    with tracing():
        print(parts[0])
        parts.append(costs(arguments.netstage, 5 * arguments.seconds))
        print(parts[-1], flush=True)
        parts.append(comparison(arguments.netstage, arguments.budget, arguments.seconds))
        print(parts[-1], flush=True)
    if not arguments.look:
        for page in PAGES:
            mark(page, "cost", "\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
