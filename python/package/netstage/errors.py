"""What can go wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Error(Exception):
    """Anything netstage refuses or fails at."""


class ArgumentError(Error, ValueError):
    """An argument that cannot be meant. Nothing was done."""


class Problem(NamedTuple):
    """One thing that is wrong with a scenario."""

    file: str
    """The scenario, a file it names, or ``command line`` for what was set in code."""
    line: int
    """Line, from 1."""
    column: int
    """Column in characters, from 1."""
    message: str
    """What is wrong."""
    help: str | None
    """What to write instead, where that can be told."""


class ScenarioError(Error, ValueError):
    """A scenario that cannot be run; :attr:`problems` has each fault with its place."""

    problems: list[Problem]

    def __init__(self, message: str, problems: Iterable[tuple[str, int, int, str, str | None]] = ()) -> None:
        self.problems = [Problem(*problem) for problem in problems]
        super().__init__(message, self.problems)

    def __str__(self) -> str:
        return str(self.args[0])


class FolderError(Error):
    """The folder for a record holds something else, or somebody else works in it."""


class RunError(Error):
    """A run failed. What was finished before is kept, and the same call goes on with it."""


class InterruptedStudy(RunError):
    """A study was stopped. What was finished is kept, and the same call goes on with it."""


class MissingError(RunError):
    """This host, user or environment lacks what is needed; :attr:`remedy` says how to get it."""

    remedy: str

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(message, remedy)

    def __str__(self) -> str:
        message, remedy = self.args
        return f"{message}: {remedy}" if remedy else str(message)


class RecordError(Error):
    """A folder holds no record that can be read."""


class CaptureError(Error, ValueError):
    """A capture from which nothing can be learned."""
