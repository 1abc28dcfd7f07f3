"""Cost of a record: of the BPF program that creates or filters it, and of the reader."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

from counted import counting, empty_run_ns, spent
from results import table
from stage import Stage, end, wait

PROGRAM = "tcp_probe"
CONNECTIONS = 4
# Line rate at which about 100,000 segments per second create a record.
PACE = "100mbit"


def is_loaded() -> bool:
    return PROGRAM in spent([PROGRAM])


def processor_ns(process) -> int:
    """Returns the processor time used by a process."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in tasks)


class WatchedExchange:
    """Traffic exchange that is watched from before its start to its end."""

    def __init__(self, stage, seconds, *command):
        with tempfile.TemporaryFile("w+") as last:
            watch = subprocess.Popen(stage.command(0, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     start_new_session=True)
            # A process must read its output.
            reader = subprocess.Popen(["tail", "-n", "1"], stdin=watch.stdout, stdout=last)
            watch.stdout.close()
            try:
                wait("timeout waiting for netstage tcp watch to load its programs; run netstage doctor", is_loaded)
                before = processor_ns(watch)
                with counting():
                    start = time.monotonic()
                    with stage.exchange(CONNECTIONS):
                        time.sleep(seconds)
                    self.seconds = time.monotonic() - start
                    self.kernel_ns, self.runs = spent([PROGRAM])[PROGRAM]
                # The reader polls 50 times a second.
                time.sleep(0.1)
                self.processor_ns = processor_ns(watch) - before
            finally:
                end(watch)
                reader.wait(60)
            last.seek(0)
            self.last = last.read()

    def counts(self):
        """Returns the numbers of records read and lost, from the last JSON line."""
        counts = json.loads(self.last)
        return counts["records"], counts["lost"]


def costs(netstage, seconds) -> str:
    """Returns two tables: the kernel's cost, and the reader's."""
    with Stage(cuts=False) as fast, Stage(cuts=False, rate=PACE) as paced:
        return costs_on(fast, paced, netstage, seconds)


def costs_on(fast, paced, netstage, seconds) -> str:
    idle = empty_run_ns()
    watch = [netstage, "tcp", "watch"]
    rows, share, without = [], 1.0, 0.0
    for name, stage, filters in [
        ("filtered by port", fast, ["--port", "9"]),
        ("filtered by process", fast, ["--process", str(os.getpid())]),
        ("created, at full speed", fast, []),
        ("created, on a 100 Mbit/s line", paced, []),
    ]:
        watched = WatchedExchange(stage, seconds, *watch, *filters, "--ndjson")
        records, lost = watched.counts()
        share = (records + lost) / watched.runs
        run = watched.kernel_ns / watched.runs - idle
        # Runs without a record cost as much as a filtered one.
        each = (run - (1 - share) * without) / share if share else run
        without = without or run
        rows.append([name, f"{each:.0f}", f"{watched.runs / watched.seconds:,.0f}", f"{watched.runs:,}", f"{share:.1%}",
                     f"{lost:,}"])
    head = ["record of a segment", "ns", "runs per second", "runs", "runs with a record", "lost"]
    parts = [table(head, rows), f"The kernel counts {idle:.0f} ns for an empty program; they are subtracted.\n"]
    # All records of the slower exchange are read.
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [("displayed", []), ("as a JSON line", ["--ndjson"]),
                              ("recorded, with a report", ["--out", f"{folder}/record"])]:
            watched = WatchedExchange(paced, seconds, *watch, *options)
            rows.append([name, f"{watched.processor_ns / (watched.runs * share):.0f}", f"{watched.runs * share / watched.seconds:,.0f}"])
    parts.append(table(["use of a record", "ns of netstage", "records per second"], rows))
    return "\n".join(parts)
