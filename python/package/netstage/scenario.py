"""Scenarios: loaded, built in code, edited, checked and run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from netstage import _netstage
from netstage.arguments import MOST_JOBS, MOST_RETRIES, swept, whole_number
from netstage.engine import run_here, run_on_ray
from netstage.errors import ArgumentError, FolderError, Problem, RecordError, ScenarioError
from netstage.progress import Progress
from netstage.record import Record

Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One combination of what a study varies."""

    variant: str
    """Name of its variant; empty where there is none."""
    settings: dict[str, str]
    """Swept path and value, as text."""
    duration_s: float
    """Length of a run, seconds of the stage's time."""


@dataclass(frozen=True)
class Check:
    """What a scenario without fault would run."""

    title: str
    description: str
    seeds: range
    """Every cell runs under each of these."""
    cells: list[Cell]
    expectations: list[str]
    """Names of what must hold."""
    figures: list[str]
    """Names of what is drawn."""
    warnings: list[str]
    """What is legal but unwise."""


class Scenario:
    """A network, its customers and its traffic, as a scenario file describes them.

    Built from nested tables, with quantities as texts that carry their unit:

    >>> scenario = netstage.Scenario({
    ...     "scenario": {"title": "One line", "duration": "10 s"},
    ...     "node": {"a": {}, "b": {}},
    ...     "link": {"line": {"ends": ["a", "b"], "rate": "10 Mbit/s", "delay": "5 ms"}},
    ...     "flow": {"up": {"from": "a", "to": "b"}},
    ... })
    >>> scenario["link.line.delay"] = "50 ms"
    >>> scenario["flow.down"] = {"from": "b", "to": "a"}

    :attr:`edits` holds what was set, path by path; ``del scenario.edits[path]`` takes an edit back.

    Nothing is checked before :meth:`check` or :meth:`run`; both raise
    :class:`~netstage.ScenarioError`, with line and column of every fault.
    """

    edits: dict[str, Any]
    """What was set, by path, in order."""

    def __init__(self, tables: Mapping[str, Any], *, base: str | os.PathLike[str] = ".") -> None:
        """A scenario from nested tables.

        :param base: folder of trace and model files they name
        """
        if not isinstance(tables, Mapping):
            raise TypeError("a scenario is built of nested tables; load and from_text read files and texts")
        self._name = "scenario"
        self._text = _netstage.document(_plain(tables))
        # Absolute, so that it stays where it is when the process moves, or another takes it up.
        self._base: Path | None = Path(base).absolute()
        self.edits = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scenario:
        """The scenario in a file. Trace and model files it names are looked for beside it."""
        path = Path(path)
        content = path.read_bytes()
        try:
            # Line ends stay as they are: the record holds the text, and the program keeps them.
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
        """A scenario from TOML text.

        :param base: folder of trace and model files it names; without one it may name none
        :param name: what to call it in messages, and its record's folder
        """
        scenario = cls.__new__(cls)
        scenario._name, scenario._text = name, text
        scenario._base = None if base is None else Path(base).absolute()
        scenario.edits = {}
        return scenario

    @property
    def name(self) -> str:
        """The file's name without folder and ending, or what stands for it."""
        return Path(self._name).stem

    @property
    def text(self) -> str:
        """The scenario as TOML, after every edit. Raises ScenarioError where it is at fault."""
        return self._checked().text

    def tables(self) -> dict[str, Any]:
        """The scenario as nested tables, after every edit; changing them changes nothing here."""
        return tomllib.loads(self.text)

    def __setitem__(self, path: str, value: Any) -> None:
        """Sets what a path leads to, as ``--set`` does; ``*`` stands for any name.

        A whole table under a new name adds it.
        """
        self.edits.pop(path, None)
        self.edits[path] = _plain(value)

    def __getitem__(self, path: str) -> Any:
        """What stands at a path, after every edit; KeyError where nothing is written there."""
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
        """Whether anything is written at a path."""
        try:
            self[path]
        except KeyError:
            return False
        return True

    # Tables are walked with :meth:`tables`.
    __iter__ = None

    def update(self, edits: Changes) -> None:
        """Sets several paths, in order."""
        for path, value in edits.items():
            self[path] = value

    def copy(self) -> Scenario:
        """Another one, to be edited by itself."""
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
        """What :meth:`run` would run with the same arguments."""
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
        """Runs every cell under every seed and returns the record.

        Ctrl-C stops it. What is finished is kept, and the same call goes on with it.

        :param on: ``sim``, in virtual time; ``emu``, real packets between namespaces of this
            machine, in real time, which needs the program ``netstage``; or ``live``, real packets
            between the hosts of a fleet, whose controller runs on this machine
        :param seed: use this seed first, in place of the scenario's
        :param repeat: run every cell under this many seeds
        :param set: path and value, for this run alone
        :param vary: path and the values to sweep it over
        :param out: the record's folder; ``out/NAME`` unless said
        :param fleet: the fleet's folder, with ``on="live"``; unless said, the one that the program
            ``netstage`` takes: ``NETSTAGE_FLEET`` in the environment, or the user's own
        :param engine: ``local``, threads of this process, or ``ray``, the machines of the Ray
            cluster this process is connected to (simulations only)
        :param jobs: runs at a time; unless said, one per processor in the simulator, one elsewhere
        :param retries: how often a run that is void is begun anew
        :param progress: True or False to show a bar or none, or what to call with a
            :class:`~netstage.Progress`; by default a bar on terminals and in notebooks
        :param reuse: open the record in ``out`` if it is this very study, finished, in place of
            raising :class:`~netstage.FolderError`
        """
        jobs = None if jobs is None else whole_number("jobs", jobs, 1, MOST_JOBS)
        retries = whole_number("retries", retries, 0, MOST_RETRIES)
        checked = self._checked(set, vary, seed, repeat)
        folder = Path("out") / self.name if out is None else Path(out)
        if engine == "local":
            run = run_here(checked, folder, on=on, fleet=fleet, jobs=jobs, retries=retries)
        elif engine == "ray":
            source = (self._name, self._text, self._sets(set, seed, repeat), _lists(vary))
            run = run_on_ray(checked, folder, source, self._base, on=on, jobs=jobs, retries=retries)
        else:
            raise ArgumentError(f'there is no engine {engine!r}: "local" or "ray"')
        try:
            run(progress)
        except FolderError:
            record = _finished(folder) if reuse else None
            if record is None or record.plan != checked.identity(on):
                raise
            return record
        return Record.open(folder)

    def _sets(self, more: Changes | None, seed: int | None, repeat: int | None) -> list[tuple[str, Any]]:
        """All that is set, in order. Of seeds an argument counts for more than an edit."""
        asked = {"scenario.seed": seed, "scenario.repeat": repeat}
        first = [(path, _plain(value)) for path, value in asked.items() if value is not None]
        edits = [*self.edits.items(), *((path, _plain(value)) for path, value in (more or {}).items())]
        return first + [edit for edit in edits if asked.get(edit[0]) is None]

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
    """A value without NumPy's types, tuples and paths, which TOML does not know."""
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
