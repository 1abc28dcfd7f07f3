"""Records: what a study left, as tables and figures."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from netstage import _netstage
from netstage.arguments import several
from netstage.errors import ArgumentError, MissingError

if TYPE_CHECKING:
    import pandas

# The first columns of tables with a row per cell, metric and subject.
HEAD: dict[str, pa.DataType] = {"cell": pa.uint32(), "metric": pa.string(), "subject": pa.string()}

Names = str | Iterable[str]
Numbers = int | Iterable[int]


@dataclass(frozen=True)
class Metric:
    """What a metric is."""

    name: str
    unit: str
    """Unit of its values; empty where there is none."""
    layer: str
    """Layer a rate or size counts (payload, ip, link), or empty."""
    aggregation: str
    """How a bin's value is formed: mean, sum, last or max."""
    help: str
    """One line for people."""


@dataclass(frozen=True)
class Expectation:
    """What was expected, and what came of it."""

    name: str
    metric: str
    condition: str
    """What was asked, in words."""
    claim: str
    """What the paper (or whoever) claims."""
    passes: bool
    """Whether it holds in every cell it was asked of."""
    achieved: list[tuple[int, str, bool]]
    """Index of the cell, the number as people read it, and whether it holds there."""


class Figure:
    """A figure; notebooks show it as the picture it is."""

    def __init__(self, data: dict[str, Any], svg: str) -> None:
        self.data = data
        """Its numbers: axes, lines and bars."""
        self.svg = svg
        """The picture, as SVG text."""

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def title(self) -> str:
        return str(self.data["title"])

    @property
    def claim(self) -> str:
        """What the paper (or whoever) claims of it; empty where nothing is."""
        return str(self.data.get("claim", ""))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<netstage.Figure {self.name}: {self.title}>"


class Figures(Mapping[str, Figure]):
    """The figures of a record, by name; notebooks show all of them."""

    def __init__(self, recorded: _netstage.Recorded) -> None:
        self._recorded = recorded
        self._data: list[dict[str, Any]] = json.loads(recorded.figures())

    def __getitem__(self, name: str) -> Figure:
        for index, data in enumerate(self._data):
            if data["name"] == name:
                return Figure(data, self._recorded.svg(index) or "")
        raise KeyError(f"{name}: the figures are {', '.join(self)}")

    def __iter__(self) -> Iterator[str]:
        return (str(data["name"]) for data in self._data)

    def __len__(self) -> int:
        return len(self._data)

    def _repr_html_(self) -> str:
        return "".join(f"<div>{figure.svg}</div>" for figure in self.values())

    def __repr__(self) -> str:
        return f"<netstage.Figures {', '.join(self)}>"


class Record:
    """A finished study: the folder that :meth:`Scenario.run` and ``netstage run`` leave."""

    def __init__(self, recorded: _netstage.Recorded) -> None:
        self._recorded = recorded

    def __reduce__(self) -> tuple[type[Record], tuple[_netstage.Recorded]]:
        # What is cached stays with the one whose it is; in another process the folder is read again.
        return type(self), (self._recorded,)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Record:
        """Reads a record's folder; :class:`~netstage.RecordError` where it holds none."""
        return cls(_netstage.Recorded(Path(folder)))

    @cached_property
    def data(self) -> dict[str, Any]:
        """All of ``record.json``, as docs/record.md describes it."""
        data: dict[str, Any] = json.loads(self._recorded.data())
        return data

    @property
    def environment(self) -> dict[str, Any]:
        """Host, kernel and time: all that may differ between two equal runs."""
        environment: dict[str, Any] = json.loads(self._recorded.environment())
        return environment

    @property
    def folder(self) -> Path:
        """Where it is."""
        return Path(self._recorded.folder)

    @property
    def name(self) -> str:
        """That of its folder."""
        return self._recorded.name

    @property
    def title(self) -> str:
        return str(self.data["title"])

    @property
    def stage(self) -> str:
        """What it ran on: ``sim``, ``emu`` or ``live``."""
        return str(self.data["stage"])

    @property
    def plan(self) -> str:
        """Identity of what ran: equal for equal scenario, seeds, stage and tool."""
        return str(self.data["plan"])

    @property
    def passes(self) -> bool:
        """Whether every expectation holds."""
        return self._recorded.passes

    @property
    def void(self) -> list[str]:
        """Why the figures are not to be used; empty where they are."""
        return list(self.data["void"])

    @property
    def warnings(self) -> list[str]:
        """What to know before trusting the figures."""
        return list(self.data["warnings"])

    @property
    def failures(self) -> list[str]:
        """What failed while the rest went on."""
        return list(self.data.get("failures", []))

    @property
    def settings(self) -> list[dict[str, str]]:
        """What sets each cell apart: swept path and value, and its variant where there are any."""
        cells = self.data["cells"]
        variants = any(cell["variant"] for cell in cells)
        return [
            ({"variant": cell["variant"]} if variants else {}) | dict(map(tuple, cell["settings"]))
            for cell in cells
        ]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics that occur, by name, with their units."""
        fields = ("name", "unit", "layer", "aggregation", "help")
        return {m["name"]: Metric(*(m[field] for field in fields)) for m in self.data["metrics"]}

    @property
    def expectations(self) -> dict[str, Expectation]:
        """What was expected and what came of it, by name."""

        def expectation(entry: dict[str, Any]) -> Expectation:
            achieved = [(cell["cell"], cell["achieved"], cell["pass"]) for cell in entry["cells"]]
            texts = {name: entry[name] for name in ("name", "metric", "condition", "claim")}
            return Expectation(passes=entry["pass"], achieved=achieved, **texts)

        return {entry["name"]: expectation(entry) for entry in self.data["expectations"]}

    @cached_property
    def figures(self) -> Figures:
        """The figures the scenario asks for, by name."""
        return Figures(self._recorded)

    def series(
        self,
        metric: Names | None = None,
        subject: Names | None = None,
        *,
        cell: Numbers | None = None,
        seed: Numbers | None = None,
    ) -> pa.Table:
        """The values, one a row: ``cell``, ``seed``, ``time_ns``, ``subject``, ``metric``, ``value``.

        ``time_ns`` is the start of the bin, nanoseconds from the start of the run; units of values
        are in :attr:`metrics`. What an argument picks is all that is read; ``*`` in a subject stands
        for anything. What the record knows nowhere is refused; what merely does not occur together
        leaves no rows.
        """
        asked = {"metric": metric, "cell": cell, "seed": seed}
        wanted = {name: several(of) for name, of in asked.items() if of is not None}
        first = self.data["seed"]
        known = {
            "metric": list(self.metrics),
            "cell": range(len(self.data["cells"])),
            "seed": range(first, first + self.data["repeat"]),
        }
        for what, names in wanted.items():
            _know(what, names, known[what])
        file = self._recorded.series_file()
        text = pa.dictionary(pa.int32(), pa.string())
        filters: list[Any] = [(name, "in", of) for name, of in wanted.items()]
        table = pq.read_table(file, filters=filters or None, read_dictionary=["subject", "metric"])
        if subject is not None:
            subjects = table["subject"].cast(pa.string())
            chosen, strangers = _matching(several(subject), _names(subjects))
            if strangers:
                everywhere = _names(pq.read_table(file, columns=["subject"])["subject"])
                _know("subject", _matching(strangers, everywhere)[1], everywhere)
            table = table.filter(pc.is_in(subjects, pa.array(chosen, pa.string())))
        # Every row group brings a dictionary of its own.
        for name in ("subject", "metric"):
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(text))
        return table.unify_dictionaries()

    def summary(self) -> pa.Table:
        """Each cell, metric and subject in one row: mean over the measured span, its 95 % interval
        over the runs (``low``, ``high``; none under one seed), and the smallest and largest bin."""
        names = ("mean", "low", "high", "runs", "min", "max")
        rows = [
            {"cell": index, "metric": entry["metric"], "subject": entry["subject"]}
            | {name: entry.get(name) for name in names}
            | {"unit": self.metrics[entry["metric"]].unit if entry["metric"] in self.metrics else ""}
            for index, cell in enumerate(self.data["cells"])
            for entry in cell["summary"]
        ]
        numbers = {name: pa.uint32() if name == "runs" else pa.float64() for name in names}
        return pa.Table.from_pylist(rows, pa.schema(HEAD | numbers | {"unit": pa.string()}))

    def distributions(self) -> pa.Table:
        """How often each value of a delay, gap or lateness occurred, over the runs of a cell:
        ``cell``, ``metric``, ``subject``, ``value_ns``, ``count``. No rows where none were taken."""
        file = self._recorded.distributions_file()
        if file is not None:
            return pq.read_table(file)
        return pa.schema(HEAD | {"value_ns": pa.uint64(), "count": pa.uint64()}).empty_table()

    def to_pandas(
        self,
        metric: Names | None = None,
        subject: Names | None = None,
        *,
        cell: Numbers | None = None,
        seed: Numbers | None = None,
    ) -> pandas.DataFrame:
        """:meth:`series` as a data frame, with ``time_s`` in seconds and a column for each swept path."""
        try:
            frame = self.series(metric, subject, cell=cell, seed=seed).to_pandas()
        except ModuleNotFoundError as error:
            raise MissingError(f"data frames need pandas ({error})", "pip install pandas") from error
        frame.insert(2, "time_s", frame.pop("time_ns") / 1e9)
        for path in reversed(list(dict.fromkeys(path for cell in self.settings for path in cell))):
            values = {index: _number(settings.get(path)) for index, settings in enumerate(self.settings)}
            frame.insert(1, path, frame["cell"].map(values))
        return frame

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the report as one page that opens without a network."""
        self._recorded.write_page(Path(path))

    def _repr_html_(self) -> str:
        return _page(json.loads(self._recorded.report()))

    def __repr__(self) -> str:
        cells = len(self.data["cells"])
        runs = f"{cells} × {self.data['repeat']} runs"
        return f"<netstage.Record {self.folder}: {self.title}, {runs} on {self.stage}>"


class Comparison:
    """Several records side by side; notebooks show tables and figures."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = [record._recorded for record in records]
        self.data: dict[str, Any] = json.loads(_netstage.compare(self._records))
        """Tables, verdicts and figures, as the report shows them."""

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the comparison as one page that opens without a network."""
        _netstage.compare(self._records, Path(path))

    def _repr_html_(self) -> str:
        return _page(self.data)


def compare(*records: Record) -> Comparison:
    """Records side by side; differences are against the first."""
    return Comparison(records)


def _names(column: pa.ChunkedArray[Any]) -> list[str]:
    """The texts of a column, each once."""
    return [str(name) for name in pc.unique(column).to_pylist()]


def _matching(patterns: list[str], names: list[str]) -> tuple[list[str], list[str]]:
    """The names that match any pattern, and the patterns that no name matches."""
    found = {
        pattern: set(filter(re.compile(re.escape(pattern).replace(r"\*", ".*")).fullmatch, names))
        for pattern in patterns
    }
    return sorted(set().union(*found.values())), [pattern for pattern in patterns if not found[pattern]]


def _know(what: str, asked: Iterable[Any], known: Sequence[Any]) -> None:
    """Refuses what a record has none of, and says what may have been meant."""
    texts = [str(one) for one in known]
    for name in asked:
        if name not in known:
            help = "it is a number, not a text" if name in texts else _meant(str(name), texts)
            raise ArgumentError(f"this record has no {what} {name}" + (f": {help}" if help else ""))


def _meant(written: str, known: list[str]) -> str | None:
    """What may have been meant: a flow group, by member or by receiver, or what reads alike."""
    for many in ("[*]", "@*"):
        if _matching([written + many], known)[0]:
            return f"did you mean `{written}{many}`?"
    return _netstage.did_you_mean(written, known)


def _number(text: str | None) -> float | str | None:
    """A swept value as a number, where it is one."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _page(data: dict[str, Any]) -> str:
    """Headline, warnings, verdicts and the first tables of a report, for a notebook."""

    def escape(text: str) -> str:
        # Control characters have no place in HTML, and a title may hold any.
        return html.escape("".join(c if c.isprintable() else " " for c in text))

    parts = [f"<h3>{escape(data['title'])}</h3>"]
    parts += [f"<p><b>{escape(data['void'])}</b></p>"] if data.get("void") else []
    parts += [f"<p>{escape(warning)}</p>" for warning in data["warnings"]]
    verdicts = [
        f"<li>{'✓' if verdict['pass'] else '✗'} {escape(verdict['name'])}: {escape(verdict['metric'])} "
        f"{escape(verdict['condition'])} — {escape(verdict['achieved'])} "
        f"{escape(verdict.get('cell', ''))}</li>"
        for verdict in data["expectations"]
    ]
    parts += ["<ul>", *verdicts, "</ul>"] if verdicts else []
    shown = ("Results", "Tests", "Comparison")
    for table in (table for table in data["tables"] if table["title"].startswith(shown)):
        head = "".join(f"<th>{escape(column['name'])}</th>" for column in table["columns"])
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in table["rows"]
        )
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    return "".join(parts)
