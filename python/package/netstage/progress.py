"""How far a study is, on a terminal, in a notebook, or to a callable of one's own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    done: int
    """Runs finished, those of earlier parts included."""
    total: int
    """Runs in all."""
    under_way: float
    """What is done of the runs under way, in runs: 0.5 is half of one. 0 with ``engine="ray"``."""
    left_s: float | None
    """Seconds left, once that can be told."""
    doing: str
    """What was begun last; empty at the start."""


Listener = Callable[[int, int, float, float | None, str], None]
"""Called several times a second with the fields of a :class:`Progress`."""


@contextmanager
def listening(progress: bool | Callable[[Progress], object] | None) -> Iterator[Listener | None]:
    """The listener that ``progress`` asks for: None shows a bar where somebody can see it."""
    if callable(progress):
        tell = progress
        yield lambda done, total, part, left, doing: void(tell(Progress(done, total, part, left, doing)))
    elif progress or (progress is None and (in_notebook() or sys.stderr.isatty())):
        with bar() as listener:
            yield listener
    else:
        yield None


def void(_: object) -> None:
    """Nothing, whatever a callable returned."""


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def bar() -> Iterator[Listener]:
    """A bar: a widget in notebooks that have widgets, text elsewhere."""
    if in_notebook() and importlib.util.find_spec("ipywidgets"):
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm

    # Its own guess counts what an earlier part finished, and nothing of the run under way.
    layout = "{percentage:3.0f} %|{bar}| {desc} {elapsed}{postfix}"
    with tqdm(leave=False, bar_format=layout) as shown:

        def listener(done: int, total: int, under_way: float, left_s: float | None, doing: str) -> None:
            shown.total = total
            shown.n = done + under_way
            shown.set_description_str(f"{done} of {total} runs,", refresh=False)
            left = "" if left_s is None else f"{shown.format_interval(left_s)} left"
            shown.set_postfix_str(", ".join(filter(None, (left, doing))), refresh=False)
            shown.refresh()

        yield listener
