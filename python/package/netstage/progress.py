"""Progress of a study: bar on a terminal or in a notebook, or callback."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Progress of a study."""

    done: int
    """Finished runs, including those of earlier parts."""
    total: int
    """Total runs."""
    in_progress: float
    """Sum of the progress of runs in progress, in runs: 0.5 is half a run. 0 with ``engine="ray"``."""
    left_s: float | None
    """Estimated remaining seconds, if known."""
    doing: str
    """Latest activity; empty at the start."""


Listener = Callable[[int, int, float, float | None, str], None]
"""Callback that receives the fields of a :class:`Progress` several times a second."""


@contextmanager
def listening(progress: bool | Callable[[Progress], object] | None) -> Iterator[Listener | None]:
    """Yields the listener for ``progress``; None selects a bar on terminals and in notebooks."""
    if callable(progress):
        callback = progress
        yield lambda done, total, part, left, doing: void(callback(Progress(done, total, part, left, doing)))
    elif progress or (progress is None and (in_notebook() or sys.stderr.isatty())):
        with bar() as listener:
            yield listener
    else:
        yield None


def void(_: object) -> None:
    """Discards a result."""


def in_notebook() -> bool:
    """Returns whether the code runs in a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def bar() -> Iterator[Listener]:
    """Yields a listener that shows a progress bar: a widget in notebooks with widgets, or text."""
    if in_notebook() and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    # The estimate of tqdm includes runs of earlier parts and ignores runs in progress.
    layout = "{percentage:3.0f} %|{bar}| {desc} {elapsed}{postfix}"
    with tqdm(leave=False, bar_format=layout) as progress_bar:

        def listener(done: int, total: int, in_progress: float, left_s: float | None, doing: str) -> None:
            progress_bar.total = total
            progress_bar.n = done + in_progress
            progress_bar.set_description_str(f"{done} of {total} runs,", refresh=False)
            left = "" if left_s is None else f"{progress_bar.format_interval(left_s)} left"
            progress_bar.set_postfix_str(", ".join(filter(None, (left, doing))), refresh=False)
            progress_bar.refresh()

        yield listener
