"""Exceptions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Error(Exception):
    """Base class of all netstage exceptions."""


class ArgumentError(Error, ValueError):
    """Invalid argument. Nothing was executed."""


class Problem(NamedTuple):
    """Problem of a scenario."""

    file: str
    """Scenario, a file named in it, or ``command line`` for values set in code."""
    line: int
    """Line, from 1."""
    column: int
    """Column in characters, from 1."""
    message: str
    """Message."""
    help: str | None
    """Suggested correction, if any."""


class ScenarioError(Error, ValueError):
    """Invalid scenario. :attr:`problems` lists each problem with its position."""

    problems: list[Problem]

    def __init__(self, message: str, problems: Iterable[tuple[str, int, int, str, str | None]] = ()) -> None:
        self.problems = [Problem(*problem) for problem in problems]
        super().__init__(message, self.problems)

    def __str__(self) -> str:
        return str(self.args[0])


class FolderError(Error):
    """Folder of a record that holds other files or is in use."""


class RunError(Error):
    """Failed run. Finished runs are kept, and the same call resumes the study."""


class InterruptedStudy(RunError):
    """Interrupted study. Finished runs are kept, and the same call resumes it."""


class MissingError(RunError):
    """Missing program, permission or feature of this host. :attr:`remedy` describes how to get it."""

    remedy: str

    def __init__(self, message: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(message, remedy)

    def __str__(self) -> str:
        message, remedy = self.args
        return f"{message}: {remedy}" if remedy else str(message)


class RecordError(Error):
    """Folder without a readable record."""


class CaptureError(Error, ValueError):
    """Capture that no model can be learned from."""
