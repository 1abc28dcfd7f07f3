"""Throughput with and without an observer, in pairs."""

import contextlib
import math
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from records import is_loaded, processor_ns
from results import table
from stage import Stage, end, wait

FOLDER = pathlib.Path(__file__).resolve().parent
TRACING = pathlib.Path("/sys/kernel/tracing")
STREAMS = 2
# Time for the effects of loading and unloading to subside.
SETTLE = 0.1
# Student's t, two-sided 95 %, by degrees of freedom.
STUDENT = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
           2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]


class Observer:
    """Command that runs as a context manager; its start is detected by `has_begun`, or assumed after `begins` seconds."""

    def __init__(self, *command, has_begun=None, begins: float = 0.3):
        self.command = command
        self.has_begun = has_begun
        self.begins = begins

    @contextlib.contextmanager
    def observing(self, stage):
        with tempfile.TemporaryFile() as output:
            process = stage.start(0, *self.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                if self.has_begun:
                    wait(f"timeout waiting for {self.command[0]} to start", self.has_begun)
                else:
                    time.sleep(self.begins)
                yield process
                if process.poll() is not None:
                    output.seek(0)
                    sys.exit(f"{self.command}: {output.read().decode(errors='replace')[-500:]}")
            finally:
                end(process)


def slice_of(stage, seconds) -> float:
    time.sleep(SETTLE)
    return stage.rate(seconds)


class Row:
    """Measured pairs of one observer."""

    def __init__(self, name, observer):
        self.name, self.observer = name, observer
        self.ratios, self.shares = [], []

    def pair(self, stage, seconds, chance):
        """Measures two adjacent slices in random order."""
        is_second = chance.random() < 0.5
        without = slice_of(stage, seconds) if is_second else 0
        with self.observer.observing(stage) as process:
            before = processor_ns(process)
            observed = slice_of(stage, seconds)
            self.shares.append((processor_ns(process) - before) / 1e9 / (SETTLE + seconds))
        self.ratios.append(observed / (without or slice_of(stage, seconds)))

    def cells(self):
        values = self.ratios
        half = STUDENT[min(len(values) - 2, len(STUDENT) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
        return [self.name, len(values), f"{statistics.fmean(values):.4f} ± {half:.4f}",
                f"{statistics.fmean(self.shares):.1%}"]


def observers(netstage):
    """Returns observers by name: those of netstage, then the installed others."""
    watch = [netstage, "tcp", "watch"]
    ours = {
        "netstage tcp watch": Observer(*watch, has_begun=is_loaded),
        "netstage tcp watch, other port": Observer(*watch, "--port", "9", has_begun=is_loaded),
    }
    others = {"ss -tin, 20 times a second": Observer("bash", "-c", "while :; do ss -tin; sleep 0.05; done")}
    if TRACING.joinpath("events/tcp/tcp_probe").exists():
        if shutil.which("bpftrace"):
            others["bpftrace, tcp_probe"] = Observer("bpftrace", str(FOLDER / "probe.bt"), begins=1.5)
        if shutil.which("perf"):
            others["perf record, tcp_probe"] = Observer("perf", "record", "-a", "-e", "tcp:tcp_probe", "-o", "/dev/null",
                                                        begins=1)
    return ours, others


def compare(stage, rows, budget, seconds):
    """Measures pairs of all observers in turn until the time is over, at least two each."""
    chance = random.Random(1)
    with stage, stage.transfer(STREAMS):
        deadline = time.monotonic() + budget
        while time.monotonic() < deadline or len(rows[0].ratios) < 2:
            chance.shuffle(rows)
            for row in rows:
                row.pair(stage, seconds, chance)


def comparison(netstage, budget, seconds) -> str:
    """Returns a table of transfers limited by the line, by the processors, and with one packet per segment."""
    ours, others = observers(netstage)
    watch = dict(list(ours.items())[:1])
    parts = []
    for where, stage, selected, share in [
        ("a 1 Gbit/s line", Stage(cuts=True, rate="1gbit"), watch, 0.1),
        ("both processors", Stage(cuts=True), watch, 0.3),
        ("both processors, one packet per segment", Stage(cuts=False), ours, 0.35),
        ("both processors, one packet per segment", Stage(cuts=False), others, 0.25),
    ]:
        rows = [Row(name, observer) for name, observer in selected.items()]
        compare(stage, list(rows), share * budget, seconds)
        parts += [[where, *row.cells()] for row in rows]
    return table(["limited by", "observer", "pairs", "throughput with / without observer, 95 %", "processor share of the observer"], parts, 2)
