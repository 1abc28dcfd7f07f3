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
    left_s: float | None
    """Seconds left, once a run has told how long one takes."""
    doing: str
    """What was begun last; empty at the start."""


Listener = Callable[[int, int, float | None, str], None]
"""Called several times a second with the fields of a :class:`Progress`."""


@contextmanager
def listening(progress: bool | Callable[[Progress], object] | None) -> Iterator[Listener | None]:
    """The listener that ``progress`` asks for: None shows a bar where somebody can see it."""
    if callable(progress):
        tell = progress
        yield lambda done, total, left, doing: void(tell(Progress(done, total, left, doing)))
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

    with tqdm(unit=" runs", leave=False) as shown:

        def listener(done: int, total: int, _: float | None, doing: str) -> None:
            shown.total = total
            # What an earlier part finished says nothing of how fast this one is.
            if shown.n == 0 and done > 0 and not doing:
                shown.initial = done
            shown.n = done
            shown.set_postfix_str(doing, refresh=False)
            shown.refresh()

        yield listener
