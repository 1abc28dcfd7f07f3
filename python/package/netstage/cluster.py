"""Distribution of a study's runs over a Ray cluster.

The driver holds the record's folder and saves each run after verifying its file; workers have no state. Ray
repeats the runs of a lost worker on another one. Runs are sent in batches that take about half a second,
which limits the overhead of short runs.
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

BATCH_S = 0.5
"""Target duration of a task in seconds."""

MAX_LOSSES = 3
"""Maximum number of workers lost during the same task before the study fails."""

Run = tuple[int, int]
"""Index of a cell, and a seed."""


class Source:
    """Input of a worker: scenario text, edits and files."""

    def __init__(
        self, identity: str, scenario: tuple[Any, ...], files: dict[str, bytes], retries: int
    ) -> None:
        self.identity = identity
        self.scenario = scenario
        self.files = files
        self.retries = retries

    def check(self) -> _netstage.Checked:
        """Returns the checked scenario after comparing its identity with the driver's."""
        name, text, edits, vary = self.scenario
        with tempfile.TemporaryDirectory() as folder:
            for file, content in self.files.items():
                path = Path(folder) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            checked = _netstage.check(name, text, folder, edits, vary)
        if checked.identity("sim") != self.identity:
            message = f"a worker has a different netstage than the driver ({_netstage.TOOL})"
            raise RunError(f"{message}: install the same package on every machine of the cluster")
        return checked


# A worker process checks a scenario once for all its tasks.
_last: tuple[str, _netstage.Checked] | None = None


def perform(source: Source, runs: list[Run]) -> tuple[list[bytes], float]:
    """Performs runs on a worker and returns the bytes of their files and the elapsed seconds."""
    global _last
    if _last is None or _last[0] != source.identity:
        _last = (source.identity, source.check())
    started = time.monotonic()
    files = [_netstage.perform(_last[1], cell, seed, source.retries) for cell, seed in runs]
    return files, time.monotonic() - started


def spread(
    checked: _netstage.Checked, out: Path, source: Source, jobs: int | None, listener: Listener | None
) -> None:
    """Performs all pending runs on the cluster this process is connected to, or on a new local one."""
    study = _netstage.Study(checked, out, "sim")
    try:
        if not ray.is_initialized():
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                # The local cluster needs no other address.
                _node_ip_address="127.0.0.1",
            )
        jobs = jobs or max(1, int(cast(Any, ray).cluster_resources().get("CPU", 1)))
        Spread(study, ray.put(source), jobs, listener).run()
        study.finish(jobs)
    finally:
        study.close()


class Spread:
    """The driver: two batches in flight per job, so that no worker waits."""

    def __init__(self, study: _netstage.Study, source: Any, jobs: int, listener: Listener | None) -> None:
        self.study = study
        self.source = source
        self.jobs = jobs
        self.listener = listener
        self.task = ray.remote(max_retries=MAX_LOSSES)(perform)
        self.pending: deque[Run] = deque(study.pending)
        self.total = study.total
        self.resumed = self.total - len(self.pending)
        self.in_flight: dict[Any, list[Run]] = {}
        self.kept = 0
        self.busy_s = 0.0
        self.started = time.monotonic()

    def run(self) -> None:
        """Performs all runs. Cancels the tasks in flight on an error."""
        try:
            self.report()
            while self.pending or self.in_flight:
                self.send()
                done, _ = ray.wait(list(self.in_flight), timeout=0.2)
                for task in done:
                    self.keep(task, self.in_flight.pop(task))
                self.report()
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(self.study.interrupted(self.kept))
            raise
        except ray.exceptions.TaskCancelledError as error:
            raise InterruptedStudy(self.study.interrupted(self.kept)) from error
        finally:
            for task in self.in_flight:
                ray.cancel(task, force=True)

    def send(self) -> None:
        """Submits batches up to two per job."""
        while self.pending and len(self.in_flight) < 2 * self.jobs:
            runs = [self.pending.popleft() for _ in range(min(self.batch_size(), len(self.pending)))]
            self.in_flight[self.task.remote(self.source, runs)] = runs

    def batch_size(self) -> int:
        """Returns the number of runs that take about BATCH_S; fewer near the end, to balance the workers."""
        if self.kept == 0:
            return 1
        target = int(BATCH_S * self.kept / max(self.busy_s, 1e-6))
        fair = len(self.pending) // (2 * self.jobs)
        return max(1, min(target, fair))

    def keep(self, task: Any, runs: list[Run]) -> None:
        """Saves the runs of a finished task."""
        try:
            files, seconds = ray.get(task)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
            cell, seed = runs[0]
            message = f"{MAX_LOSSES + 1} workers were lost during the run of cell {cell} with seed {seed}"
            raise RunError(f"{message}: {error}") from error
        except ray.exceptions.RayError as error:
            hint = "install the same netstage on every machine of the cluster"
            raise RunError(f"a worker could not perform a run ({hint}): {error}") from error
        for (cell, seed), file in zip(runs, files, strict=True):
            self.study.keep(cell, seed, file)
            self.kept += 1
        self.busy_s += seconds

    def report(self) -> None:
        """Reports the progress to the listener."""
        if self.listener is None:
            return
        done = self.resumed + self.kept
        left = (time.monotonic() - self.started) / self.kept * (self.total - done) if self.kept else None
        doing = f"{len(self.in_flight)} tasks in flight" if self.in_flight else ""
        self.listener(done, self.total, 0.0, left, doing)
