"""A study's runs, spread over a Ray cluster.

The driver holds the record's folder and keeps each run as it comes back, checked to be that run's;
workers hold nothing. A worker that is lost takes only the runs it was at with it: Ray gives them to
another. Runs are sent in handfuls, as many as take a good part of a second, so that short ones do
not drown in messages.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, cast

import ray

from netstage import _netstage
from netstage.errors import InterruptedStudy, RunError
from netstage.progress import Listener

HANDFUL_S = 0.5
"""How long a task should take, seconds."""

MOST_LOSSES = 3
"""How many workers may be lost at the same task before it is the task that is to blame."""

Run = tuple[int, int]
"""Index of a cell, and a seed."""


class Source:
    """What a worker needs to come to the same scenario: text, edits, and the files it names."""

    def __init__(
        self, identity: str, scenario: tuple[Any, ...], files: dict[str, bytes], retries: int
    ) -> None:
        self.identity = identity
        self.scenario = scenario
        self.files = files
        self.retries = retries

    def check(self) -> _netstage.Checked:
        """The scenario, known to be the driver's: equal text, files and tool."""
        name, text, edits, vary = self.scenario
        with tempfile.TemporaryDirectory() as folder:
            for file, content in self.files.items():
                place = Path(folder) / file
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            checked = _netstage.check(name, text, folder, edits, vary)
        if checked.identity("sim") != self.identity:
            message = f"a worker has another netstage than the driver ({_netstage.TOOL} there)"
            raise RunError(f"{message}: install the same package on every machine of the cluster")
        return checked


# A worker process checks a scenario once, however many tasks of it it gets.
_last: tuple[str, _netstage.Checked] | None = None


def perform(source: Source, runs: list[Run]) -> tuple[list[bytes], float]:
    """Performs runs, on a worker: the bytes of their files, and the seconds it took."""
    global _last
    if _last is None or _last[0] != source.identity:
        _last = (source.identity, source.check())
    started = time.monotonic()
    files = [_netstage.perform(_last[1], cell, seed, source.retries) for cell, seed in runs]
    return files, time.monotonic() - started


def spread(
    checked: _netstage.Checked, out: Path, source: Source, jobs: int | None, listener: Listener | None
) -> None:
    """Performs all that is pending on the cluster this process is connected to, or starts one here."""
    study = _netstage.Study(checked, out, "sim")
    try:
        if not ray.is_initialized():
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                # Nobody else need reach it.
                _node_ip_address="127.0.0.1",
            )
        jobs = jobs or max(1, int(cast(Any, ray).cluster_resources().get("CPU", 1)))
        Spread(study, ray.put(source), jobs, listener).run()
        study.finish(jobs)
    finally:
        study.close()


class Spread:
    """The driver: two handfuls in flight for each job, so that none waits for its next one."""

    def __init__(self, study: _netstage.Study, source: Any, jobs: int, listener: Listener | None) -> None:
        self.study = study
        self.source = source
        self.jobs = jobs
        self.listener = listener
        self.task = ray.remote(max_retries=MOST_LOSSES)(perform)
        self.waiting: deque[Run] = deque(study.pending)
        self.total = study.total
        self.resumed = self.total - len(self.waiting)
        self.flying: dict[Any, list[Run]] = {}
        self.kept = 0
        self.busy_s = 0.0
        self.started = time.monotonic()

    def run(self) -> None:
        """Until all is kept; where that ends early, what flies is called off."""
        try:
            self.tell()
            while self.waiting or self.flying:
                self.send()
                done, _ = ray.wait(list(self.flying), timeout=0.2)
                for task in done:
                    self.keep(task, self.flying.pop(task))
                self.tell()
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(self.study.interrupted(self.kept))
            raise
        except ray.exceptions.TaskCancelledError as error:
            raise InterruptedStudy(self.study.interrupted(self.kept)) from error
        finally:
            for task in self.flying:
                ray.cancel(task, force=True)

    def send(self) -> None:
        """Sends handfuls while fewer than wanted are in flight."""
        while self.waiting and len(self.flying) < 2 * self.jobs:
            runs = [self.waiting.popleft() for _ in range(min(self.handful(), len(self.waiting)))]
            self.flying[self.task.remote(self.source, runs)] = runs

    def handful(self) -> int:
        """Runs that take about HANDFUL_S together; fewer near the end, so that all finish together."""
        if self.kept == 0:
            return 1
        wanted = int(HANDFUL_S * self.kept / max(self.busy_s, 1e-6))
        fair = len(self.waiting) // (2 * self.jobs)
        return max(1, min(wanted, fair))

    def keep(self, task: Any, runs: list[Run]) -> None:
        """Keeps what a task brought."""
        try:
            files, seconds = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
            cell, seed = runs[0]
            message = f"{MOST_LOSSES + 1} workers were lost at the run of cell {cell} with seed {seed}"
            raise RunError(f"{message}: {error}") from error
        except ray.exceptions.RayError as error:
            hint = "is the same netstage installed on every machine of the cluster?"
            raise RunError(f"a worker could not take a run ({hint}): {error}") from error
        for (cell, seed), file in zip(runs, files, strict=True):
            self.study.keep(cell, seed, file)
            self.kept += 1
        self.busy_s += seconds

    def tell(self) -> None:
        """Tells the listener."""
        if self.listener is None:
            return
        done = self.resumed + self.kept
        left = (time.monotonic() - self.started) / self.kept * (self.total - done) if self.kept else None
        doing = f"{len(self.flying)} tasks in flight" if self.flying else ""
        self.listener(done, self.total, 0.0, left, doing)
