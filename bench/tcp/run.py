#!/usr/bin/env python3
"""Measures the cost of watching TCP: nanoseconds of `netstage tcp watch` per record, in the kernel and in the reader,
records lost at a high segment rate, and throughput with and without an observer: netstage, ss, bpftrace, perf.
README.md describes the method; the tables are written there and into docs/results/vpn-tcp.md. Needs root."""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
sys.path.append(str(REPOSITORY / "scripts"))

from observers import TRACING, comparison  # noqa: E402
from records import costs  # noqa: E402
from results import mark  # noqa: E402

PAGES = [FOLDER / "README.md", REPOSITORY / "docs/results/vpn-tcp.md"]
EXIT_FAILED, EXIT_MISSING = 1, 4


@contextlib.contextmanager
def tracing():
    """Mounts the kernel's trace files temporarily."""
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
    return f"{model}, {os.cpu_count()} cores, Linux {os.uname().release}; load {os.getloadavg()[0]:.1f} at the start."


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--netstage", default=str(REPOSITORY / "target/release/netstage"))
    parser.add_argument("--budget", type=float, default=170, help="seconds for pairs of transfers")
    parser.add_argument("--seconds", type=float, default=0.4, help="seconds of a slice")
    parser.add_argument("--look", action="store_true", help="print the tables without writing pages")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench-tcp needs root", file=sys.stderr)
        return EXIT_MISSING
    # Real-time priority makes slices start and end on time on busy processors; the observed processes do not
    # inherit it.
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    # Clean up on any signal.
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
