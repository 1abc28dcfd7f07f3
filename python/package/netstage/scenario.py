"""Scenarios: loading, construction, edits, checks and runs."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from netstage import _netstage
from netstage.arguments import MAX_JOBS, MAX_RETRIES, swept, whole_number
from netstage.engine import run_here, run_on_ray
from netstage.errors import ArgumentError, FolderError, Problem, RecordError, ScenarioError
from netstage.progress import Progress
from netstage.record import Record

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """Combination of a variant and swept values."""

    variant: str
    """Name of the variant; empty: none."""
    settings: dict[str, str]
    """Swept values by path, as text."""
    duration_s: float
    """Duration of a run in seconds of the stage's time."""


@dataclass(frozen=True)
class Check:
    """Result of checking a valid scenario."""

    title: str
    description: str
    seeds: range
    """Seeds of each cell."""
    cells: list[Cell]
    expectations: list[str]
    """Names of the expectations."""
    figures: list[str]
    """Names of the figures."""
    warnings: list[str]
    """Warnings."""


class Scenario:
    """Network, customers and traffic, as in a scenario file.

    A scenario can be built from nested tables, with quantities as strings with a unit:

    >>> scenario = netstage.Scenario({
    ...     "scenario": {"title": "One line", "duration": "10 s"},
    ...     "node": {"a": {}, "b": {}},
    ...     "link": {"line": {"ends": ["a", "b"], "rate": "10 Mbit/s", "delay": "5 ms"}},
    ...     "flow": {"up": {"from": "a", "to": "b"}},
    ... })
    >>> scenario["link.line.delay"] = "50 ms"
    >>> scenario["flow.down"] = {"from": "b", "to": "a"}

    :attr:`edits` holds the assignments by path; ``del scenario.edits[path]`` reverts one.

    The scenario is checked by :meth:`check` and :meth:`run`, which raise :class:`~netstage.ScenarioError`
    with the line and column of each problem.
    """

    edits: dict[str, Any]
    """Assignments by path, in order."""

    def __init__(self, tables: Mapping[str, Any], *, base: str | os.PathLike[str] = ".") -> None:
        """Creates a scenario from nested tables.

        :param base: folder of trace and model files
        """
        if not isinstance(tables, Mapping):
            raise TypeError("expected nested tables; use load for a file or from_text for a text")
        self._name = "scenario"
        self._text = _netstage.document(_plain(tables))
        # Absolute, so that it remains valid after a change of the working folder and in other processes.
        self._base: Path | None = Path(base).absolute()
        self.edits = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scenario:
        """Loads a scenario file. Paths of trace and model files are relative to its folder."""
        path = Path(path)
        content = path.read_bytes()
        try:
            # Line endings are preserved, as by the program; the record contains the text.
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            message = f"the file is not UTF-8 text (line {line})"
            raise ScenarioError(f"{path}: {message}", [Problem(str(path), line, 1, message, None)]) from None
        return cls.from_text(text, base=path.parent, name=str(path))

    @classmethod
    def from_text(
        cls, text: str, *, base: str | os.PathLike[str] | None = None, name: str = "scenario"
    ) -> Scenario:
        """Creates a scenario from TOML text.

        :param base: folder of trace and model files; None: no such files
        :param name: name in messages and of the record's folder
        """
        scenario = cls.__new__(cls)
        scenario._name, scenario._text = name, text
        scenario._base = None if base is None else Path(base).absolute()
        scenario.edits = {}
        return scenario

    @property
    def name(self) -> str:
        """File name without folder and extension, or the given name."""
        return Path(self._name).stem

    @property
    def text(self) -> str:
        """Scenario as TOML, with all edits. Raises ScenarioError if it is invalid."""
        return self._checked().text

    def tables(self) -> dict[str, Any]:
        """Returns a copy of the scenario as nested tables, with all edits."""
        return tomllib.loads(self.text)

    def __setitem__(self, path: str, value: Any) -> None:
        """Sets the value of a path, as ``--set`` does; ``*`` matches any name.

        A table with a new name is added.
        """
        self.edits.pop(path, None)
        self.edits[path] = _plain(value)

    def __getitem__(self, path: str) -> Any:
        """Returns the value of a path, with all edits. Raises KeyError if it is not set."""
        found: Any = self.tables()
        for segment in path.split("."):
            if isinstance(found, list) and segment.isdigit() and int(segment) < len(found):
                found = found[int(segment)]
            elif isinstance(found, dict) and segment in found:
                found = found[segment]
            else:
                raise KeyError(path)
        return found

    def __contains__(self, path: str) -> bool:
        """Returns whether a path is set."""
        try:
            self[path]
        except KeyError:
            return False
        return True

    # Use :meth:`tables` to iterate.
    __iter__ = None

    def update(self, edits: Changes) -> None:
        """Sets several paths, in order."""
        for path, value in edits.items():
            self[path] = value

    def copy(self) -> Scenario:
        """Returns an independent copy."""
        other = Scenario.from_text(self._text, base=self._base, name=self._name)
        other.edits = deepcopy(self.edits)
        return other

    __copy__ = copy

    def __repr__(self) -> str:
        edits = "".join(f", {path}={value!r}" for path, value in self.edits.items())
        return f"<netstage.Scenario {self._name}{edits}>"

    def check(
        self,
        *,
        seed: int | None = None,
        repeat: int | None = None,
        set: Changes | None = None,
        vary: Mapping[str, Iterable[Any]] | None = None,
    ) -> Check:
        """Checks the scenario and returns the cells that :meth:`run` would run with the same arguments."""
        checked = self._checked(set, vary, seed, repeat)
        return Check(
            title=checked.title,
            description=checked.description,
            seeds=range(checked.seed, checked.seed + checked.repeat),
            cells=[Cell(variant, dict(settings), seconds) for variant, settings, seconds in checked.cells],
            expectations=checked.expectations,
            figures=checked.plots,
            warnings=checked.warnings,
        )

    def run(
        self,
        *,
        on: Literal["sim", "emu", "live"] = "sim",
        seed: int | None = None,
        repeat: int | None = None,
        set: Changes | None = None,
        vary: Mapping[str, Iterable[Any]] | None = None,
        out: str | os.PathLike[str] | None = None,
        fleet: str | os.PathLike[str] | None = None,
        engine: Literal["local", "ray"] = "local",
        jobs: int | None = None,
        retries: int = 0,
        progress: bool | Callable[[Progress], object] | None = None,
        reuse: bool = False,
    ) -> Record:
        """Runs all cells under all seeds and returns the record.

        Ctrl-C stops the study. Finished runs are kept, and the same call resumes it.

        :param on: ``sim``: simulator; ``emu``: emulator, with real packets between namespaces of this host,
            which needs the program ``netstage``; ``live``: real packets between the hosts of a fleet, whose
            controller runs on this host
        :param seed: first seed; default: that of the scenario
        :param repeat: runs per cell; default: that of the scenario
        :param set: values by path, for this run only
        :param vary: values to sweep, by path
        :param out: folder of the record; default: ``out/NAME``
        :param fleet: folder of the fleet, with ``on="live"``; default: ``$NETSTAGE_FLEET``, or the user's
            folder
        :param engine: ``local``: threads of this process; ``ray``: the Ray cluster this process is connected
            to (simulator only)
        :param jobs: parallel runs; default: one per CPU in the simulator, otherwise one
        :param retries: maximum retries of a void run
        :param progress: True or False to show or hide a bar, or a callback that receives
            :class:`~netstage.Progress`; default: a bar on terminals and in notebooks
        :param reuse: open the record in ``out`` if it is the same finished study, instead of raising
            :class:`~netstage.FolderError`
        """
        jobs = None if jobs is None else whole_number("jobs", jobs, 1, MAX_JOBS)
        retries = whole_number("retries", retries, 0, MAX_RETRIES)
        checked = self._checked(set, vary, seed, repeat)
        folder = Path("out") / self.name if out is None else Path(out)
        if engine == "local":
            run = run_here(checked, folder, on=on, fleet=fleet, jobs=jobs, retries=retries)
        elif engine == "ray":
            source = (self._name, self._text, self._sets(set, seed, repeat), _lists(vary))
            run = run_on_ray(checked, folder, source, self._base, on=on, jobs=jobs, retries=retries)
        else:
            raise ArgumentError(f'unknown engine {engine!r}; expected "local" or "ray"')
        try:
            run(progress)
        except FolderError:
            record = _finished(folder) if reuse else None
            if record is None or record.plan != checked.identity(on):
                raise
            return record
        return Record.open(folder)

    def _sets(self, more: Changes | None, seed: int | None, repeat: int | None) -> list[tuple[str, Any]]:
        """Returns all assignments in order. Arguments override edits of seed and repeat."""
        arguments = {"scenario.seed": seed, "scenario.repeat": repeat}
        first = [(path, _plain(value)) for path, value in arguments.items() if value is not None]
        edits = [*self.edits.items(), *((path, _plain(value)) for path, value in (more or {}).items())]
        return first + [edit for edit in edits if arguments.get(edit[0]) is None]

    def _checked(
        self,
        more: Changes | None = None,
        vary: Mapping[str, Iterable[Any]] | None = None,
        seed: int | None = None,
        repeat: int | None = None,
    ) -> _netstage.Checked:
        sets = self._sets(more, seed, repeat)
        return _netstage.check(self._name, self._text, self._base, sets, _lists(vary))


def _finished(folder: Path) -> Record | None:
    try:
        return Record.open(folder)
    except RecordError:
        return None


def _lists(vary: Mapping[str, Iterable[Any]] | None) -> list[tuple[str, list[Any]]]:
    return [(path, _plain(swept(path, values))) for path, values in (vary or {}).items()]


def _plain(value: Any) -> Any:
    """Returns a value without NumPy types, tuples and paths, which TOML does not support."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return value
