"""What a record costs: the program in the kernel that makes it or leaves it, and who takes it."""

import json
import os
import pathlib
import subprocess
import tempfile
import time

from counted import counting, nothing, spent
from results import table
from stage import Stage, end, wait

PROGRAM = "tcp_probe"
CONNECTIONS = 4
# A line on which about 100,000 segments a second make a record.
PACE = "100mbit"


def is_loaded() -> bool:
    return PROGRAM in spent([PROGRAM])


def taken_ns(process) -> int:
    """Processor time of a process so far."""
    tasks = pathlib.Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int(task.joinpath("schedstat").read_text().split()[0]) for task in tasks)


class Watched:
    """An exchange, watched from before it begins until it is over."""

    def __init__(self, stage, seconds, *command):
        with tempfile.TemporaryFile("w+") as last:
            watch = subprocess.Popen(stage.command(0, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                     start_new_session=True)
            # Somebody reads what it says.
            reader = subprocess.Popen(["tail", "-n", "1"], stdin=watch.stdout, stdout=last)
            watch.stdout.close()
            try:
                wait("netstage tcp watch does not load its programs: netstage doctor says why", is_loaded)
                before = taken_ns(watch)
                with counting():
                    start = time.monotonic()
                    with stage.exchange(CONNECTIONS):
                        time.sleep(seconds)
                    self.seconds = time.monotonic() - start
                    self.kernel_ns, self.runs = spent([PROGRAM])[PROGRAM]
                # It looks 50 times a second.
                time.sleep(0.1)
                self.taken_ns = taken_ns(watch) - before
            finally:
                end(watch)
                reader.wait(60)
            last.seek(0)
            self.last = last.read()

    def counts(self):
        """Records it took and lost, from the last of its lines of JSON."""
        said = json.loads(self.last)
        return said["records"], said["lost"]


def costs(netstage, seconds) -> str:
    """Two tables: the kernel's side, and the reader's."""
    with Stage(cuts=False) as fast, Stage(cuts=False, rate=PACE) as paced:
        return costs_on(fast, paced, netstage, seconds)


def costs_on(fast, paced, netstage, seconds) -> str:
    idle = nothing()
    watch = [netstage, "tcp", "watch"]
    rows, share, without = [], 1.0, 0.0
    for name, stage, filters in [
        ("filtered by port", fast, ["--port", "9"]),
        ("filtered by process", fast, ["--process", str(os.getpid())]),
        ("made, as fast as hosts go", fast, []),
        ("made, on a line of 100 Mbit/s", paced, []),
    ]:
        seen = Watched(stage, seconds, *watch, *filters, "--ndjson")
        records, lost = seen.counts()
        share = (records + lost) / seen.runs
        run = seen.kernel_ns / seen.runs - idle
        # Runs that make none cost what a filtered one does.
        each = (run - (1 - share) * without) / share if share else run
        without = without or run
        rows.append([name, f"{each:.0f}", f"{seen.runs / seen.seconds:,.0f}", f"{seen.runs:,}", f"{share:.1%}",
                     f"{lost:,}"])
    head = ["a segment's record that is", "ns", "runs a second", "runs", "of which make one", "lost"]
    parts = [table(head, rows), f"The kernel counts {idle:.0f} ns for a program that does nothing: taken off.\n"]
    # Of the paced exchange every record is taken.
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, options in [("shown", []), ("a line of JSON", ["--ndjson"]),
                              ("kept, with a report", ["--out", f"{folder}/record"])]:
            seen = Watched(paced, seconds, *watch, *options)
            rows.append([name, f"{seen.taken_ns / (seen.runs * share):.0f}", f"{seen.runs * share / seen.seconds:,.0f}"])
    parts.append(table(["a record that is", "ns of netstage's own", "records a second"], rows))
    return "\n".join(parts)
