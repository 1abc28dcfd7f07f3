#!/usr/bin/env python3
"""What watching TCP costs: nanoseconds of `netstage tcp watch`'s program at each segment, records lost at a high rate
of ACKs, and throughput with an observer and without, in pairs: netstage, ss, bpftrace, perf. README.md says how; the
tables go there and into docs/results/vpn-tcp.md. Needs root; everything is gone when it ends."""

import argparse
import contextlib
import json
import math
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from counted import counting, nothing, spent
from stage import Stage, wait

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.append(str(REPOSITORY / "scripts"))

from results_page import mark, table  # noqa: E402

PROGRAM = "tcp_probe"
TRACING = pathlib.Path("/sys/kernel/tracing")
PAGES = [HERE / "README.md", REPOSITORY / "docs/results/vpn-tcp.md"]
# Data both ways, in segments and buffers so small that every host sends and is acknowledged all the time.
SMALL = ["--bidir", "-P", "4", "-M", "200", "-w", "128K"]
STREAMS = ["-P", "8"]
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
           2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]
EXIT_FAILED, EXIT_MISSING = 1, 4


class Observer:
    """A command that observes while it is entered."""

    def __init__(self, command, has_begun=None):
        self.command = command
        self.has_begun = has_begun

    @contextlib.contextmanager
    def observing(self, stage):
        with tempfile.TemporaryFile() as said:
            process = stage.start(0, *self.command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                if self.has_begun:
                    wait(f"{self.command[0]} does not begin to observe", self.has_begun)
                else:
                    time.sleep(1.5)
                yield
                if process.poll() is not None:
                    said.seek(0)
                    sys.exit(f"{self.command}: {said.read().decode(errors='replace')[-500:]}")
            finally:
                end(process)


def end(process):
    """Ends a session of processes as a person would, or else at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_loaded():
    return PROGRAM in spent([PROGRAM])


def cost(stage, netstage, filters, seconds):
    """Nanoseconds and runs of the program while it ran, for how long, and what the last line of the events says."""
    with tempfile.TemporaryFile("w+") as last:
        # Every event becomes a line, and somebody reads it.
        watch = subprocess.Popen(stage.command(0, netstage, "tcp", "watch", *filters, "--ndjson"),
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
        reader = subprocess.Popen(["tail", "-n", "1"], stdin=watch.stdout, stdout=last)
        watch.stdout.close()
        try:
            wait("netstage tcp watch does not load its programs: netstage doctor says why", is_loaded)
            with counting():
                start = time.monotonic()
                with stage.transfer(*SMALL):
                    time.sleep(seconds)
                took = time.monotonic() - start
                time_ns, runs = spent([PROGRAM])[PROGRAM]
        finally:
            end(watch)
            reader.wait(60)
        last.seek(0)
        return time_ns, runs, took, json.loads(last.read())


def costs(stage, netstage, seconds):
    """A table of them. What runs cost that neither emitted nor filtered, as where a segment came to a host that waits
    for none, is counted to those that did."""
    idle = nothing()
    rows = []
    for name, filters in [("filtered by port", ["--port", "9"]),
                          ("filtered by process", ["--process", str(os.getpid())]),
                          ("emitted", [])]:
        time_ns, runs, took, said = cost(stage, netstage, filters, seconds)
        made = said["records"] + said["lost"]
        count = min(made, runs) if made else runs
        each = (time_ns - idle * runs) / count
        rows.append([name, f"{each:.0f}", f"{time_ns / runs:.0f}", f"{count / took:,.0f}", f"{runs:,}", said["lost"]])
    head = ["a segment's record that is", "ns", "a run, as the kernel counts", "a second", "runs", "lost"]
    return table(head, rows) + f"\nThe kernel counts {idle:.0f} ns for a program that does nothing.\n"


def interval(values):
    mean = statistics.fmean(values)
    half = STUDENT[min(len(values) - 2, len(STUDENT) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, half


def observers(netstage, pairs):
    """By name, with how many pairs are made of each: those that are there."""
    few = max(pairs // 3, 2)
    watch = [netstage, "tcp", "watch"]
    found = {
        "netstage tcp watch": (Observer(watch, is_loaded), pairs),
        "netstage tcp watch, of another port": (Observer([*watch, "--port", "9"], is_loaded), pairs),
        "ss -tin, 20 times a second": (Observer(["bash", "-c", "while :; do ss -tin; sleep 0.05; done"]), few),
    }
    if TRACING.joinpath("events/tcp/tcp_probe").exists():
        if shutil.which("bpftrace"):
            found["bpftrace, tcp_probe"] = (Observer(["bpftrace", str(HERE / "probe.bt")]), few)
        if shutil.which("perf"):
            found["perf record, tcp_probe"] = (
                Observer(["perf", "record", "-a", "-e", "tcp:tcp_probe", "-o", "/dev/null"]), few)
    return found


def comparison(stage, netstage, pairs, seconds):
    """A table of throughput with each observer to that without, slices of one transfer: those of a pair follow each
    other, in random order."""
    everybody = observers(netstage, pairs)
    turns = [name for name, (_, count) in everybody.items() for _ in range(count)]
    chance = random.Random(1)
    chance.shuffle(turns)
    ratios = {name: [] for name in everybody}
    with stage.transfer(*STREAMS):
        for name in turns:
            observer, _ = everybody[name]
            without = None
            if chance.random() < 0.5:
                without = stage.rate(seconds)
            with observer.observing(stage):
                observed = stage.rate(seconds)
            ratios[name].append(observed / (without or stage.rate(seconds)))
    rows = []
    for name, values in ratios.items():
        mean, half = interval(values)
        rows.append([name, len(values), f"{mean:.3f} ± {half:.3f}"])
    return table(["observer", "pairs", "throughput with it / without, 95 %"], rows)


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
    parser.add_argument("--pairs", type=int, default=15, help="of each of netstage's; a third of the others'")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a slice")
    parser.add_argument("--look", action="store_true", help="print the tables and write no page")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("bench-tcp needs root", file=sys.stderr)
        return EXIT_MISSING
    if arguments.pairs < 2:
        print("two pairs at least", file=sys.stderr)
        return EXIT_FAILED
    # What was begun ends with us, asked by whichever signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    parts = [machine() + "\n"]
    with tracing(), Stage() as stage:
        print(parts[0])
        for measure in [lambda: costs(stage, arguments.netstage, 2 * arguments.seconds),
                        lambda: comparison(stage, arguments.netstage, arguments.pairs, arguments.seconds)]:
            parts.append(measure())
            print(parts[-1], flush=True)
    if not arguments.look:
        for page in PAGES:
            mark(page, "cost", "\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
