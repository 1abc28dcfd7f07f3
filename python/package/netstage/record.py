"""Records of studies as tables and figures."""

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

# First columns of tables with a row per cell, metric and subject.
HEAD: dict[str, pa.DataType] = {"cell": pa.uint32(), "metric": pa.string(), "subject": pa.string()}

Names = str | Iterable[str]
Numbers = int | Iterable[int]


@dataclass(frozen=True)
class Metric:
    """Description of a metric."""

    name: str
    unit: str
    """Unit of the values; empty: none."""
    layer: str
    """Layer of a rate or size (payload, ip, link); empty: none."""
    aggregation: str
    """Aggregation over a bin: mean, sum, last or max."""
    help: str
    """One-line description."""


@dataclass(frozen=True)
class Expectation:
    """Expectation with its results."""

    name: str
    metric: str
    condition: str
    """Expected value."""
    claim: str
    """Claim that the expectation verifies, such as a statement of a paper."""
    passes: bool
    """Whether the expectation is met in all its cells."""
    achieved: list[tuple[int, str, bool]]
    """For each cell: index, formatted value, and whether the expectation is met."""


class Figure:
    """Figure, displayed as a picture in notebooks."""

    def __init__(self, data: dict[str, Any], svg: str) -> None:
        self.data = data
        """Data: axes, lines and bars."""
        self.svg = svg
        """Picture as SVG."""

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def title(self) -> str:
        return str(self.data["title"])

    @property
    def claim(self) -> str:
        """Claim that the figure verifies; empty: none."""
        return str(self.data.get("claim", ""))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<netstage.Figure {self.name}: {self.title}>"


class Figures(Mapping[str, Figure]):
    """Figures of a record by name, all displayed in notebooks."""

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
    """Record of a finished study: the folder written by :meth:`Scenario.run` and ``netstage run``."""

    def __init__(self, recorded: _netstage.Recorded) -> None:
        self._recorded = recorded

    def __reduce__(self) -> tuple[type[Record], tuple[_netstage.Recorded]]:
        # Caches are not pickled; the other process reads the folder again.
        return type(self), (self._recorded,)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Record:
        """Opens the folder of a record. Raises :class:`~netstage.RecordError` if it holds none."""
        return cls(_netstage.Recorded(Path(folder)))

    @cached_property
    def data(self) -> dict[str, Any]:
        """Contents of ``record.json`` (docs/record.md)."""
        data: dict[str, Any] = json.loads(self._recorded.data())
        return data

    @property
    def environment(self) -> dict[str, Any]:
        """Host, kernel and time: the data that may differ between executions of the same study."""
        environment: dict[str, Any] = json.loads(self._recorded.environment())
        return environment

    @property
    def folder(self) -> Path:
        """Path of the folder."""
        return Path(self._recorded.folder)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._recorded.name

    @property
    def title(self) -> str:
        return str(self.data["title"])

    @property
    def stage(self) -> str:
        """Stage: ``sim``, ``emu`` or ``live``."""
        return str(self.data["stage"])

    @property
    def plan(self) -> str:
        """Identity of the study, equal for the same scenario, seeds, stage and tool."""
        return str(self.data["plan"])

    @property
    def passes(self) -> bool:
        """Whether all expectations are met."""
        return self._recorded.passes

    @property
    def void(self) -> list[str]:
        """Reasons for which the measurement is void; empty: it is valid."""
        return list(self.data["void"])

    @property
    def warnings(self) -> list[str]:
        """Warnings about the results."""
        return list(self.data["warnings"])

    @property
    def failures(self) -> list[str]:
        """Failures that did not stop the study."""
        return list(self.data.get("failures", []))

    @property
    def settings(self) -> list[dict[str, str]]:
        """Swept values of each cell by path, and its variant if there are any."""
        cells = self.data["cells"]
        variants = any(cell["variant"] for cell in cells)
        return [
            ({"variant": cell["variant"]} if variants else {}) | dict(map(tuple, cell["settings"]))
            for cell in cells
        ]

    @property
    def metrics(self) -> dict[str, Metric]:
        """Metrics of the record by name."""
        fields = ("name", "unit", "layer", "aggregation", "help")
        return {m["name"]: Metric(*(m[field] for field in fields)) for m in self.data["metrics"]}

    @property
    def expectations(self) -> dict[str, Expectation]:
        """Expectations with their results, by name."""

        def expectation(entry: dict[str, Any]) -> Expectation:
            achieved = [(cell["cell"], cell["achieved"], cell["pass"]) for cell in entry["cells"]]
            texts = {name: entry[name] for name in ("name", "metric", "condition", "claim")}
            return Expectation(passes=entry["pass"], achieved=achieved, **texts)

        return {entry["name"]: expectation(entry) for entry in self.data["expectations"]}

    @cached_property
    def figures(self) -> Figures:
        """Figures by name."""
        return Figures(self._recorded)

    def series(
        self,
        metric: Names | None = None,
        subject: Names | None = None,
        *,
        cell: Numbers | None = None,
        seed: Numbers | None = None,
    ) -> pa.Table:
        """Returns measured values, one per row.

        The columns are ``cell``, ``seed``, ``time_ns``, ``subject``, ``metric`` and ``value``. ``time_ns`` is
        the start of the bin in nanoseconds from the start of the run; units of values are in :attr:`metrics`.
        Arguments select values; ``*`` in a subject matches any text. A name that the record does not contain
        raises :class:`~netstage.ArgumentError`; a combination that does not occur gives an empty table.
        """
        arguments = {"metric": metric, "cell": cell, "seed": seed}
        selected = {name: several(values) for name, values in arguments.items() if values is not None}
        first = self.data["seed"]
        known = {
            "metric": list(self.metrics),
            "cell": range(len(self.data["cells"])),
            "seed": range(first, first + self.data["repeat"]),
        }
        for kind, names in selected.items():
            _require_known(kind, names, known[kind])
        file = self._recorded.series_file()
        text = pa.dictionary(pa.int32(), pa.string())
        filters: list[Any] = [(name, "in", values) for name, values in selected.items()]
        table = pq.read_table(file, filters=filters or None, read_dictionary=["subject", "metric"])
        if subject is not None:
            subjects = table["subject"].cast(pa.string())
            matching, unmatched = _matching(several(subject), _names(subjects))
            if unmatched:
                all_subjects = _names(pq.read_table(file, columns=["subject"])["subject"])
                _require_known("subject", _matching(unmatched, all_subjects)[1], all_subjects)
            table = table.filter(pc.is_in(subjects, pa.array(matching, pa.string())))
        # Each row group has its own dictionary.
        for name in ("subject", "metric"):
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(text))
        return table.unify_dictionaries()

    def summary(self) -> pa.Table:
        """Returns a row per cell, metric and subject: mean over the measured span, 95 % interval over the
        runs (``low``, ``high``; null with one seed), and minimum and maximum of the bins."""
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

    def percentiles(self) -> pa.Table:
        """Returns a row per cell and distribution, over all values of all runs: number of values (``count``),
        ``mean``, ``min``, ``max``, and percentiles ``p50``, ``p90``, ``p95``, ``p99`` and ``p999`` with their
        95 % intervals (``p50_low``, ``p50_high``, …). A percentile is null with too few values for it."""
        names = ("p50", "p90", "p95", "p99", "p999")
        rows: list[dict[str, Any]] = []
        for index, cell in enumerate(self.data["cells"]):
            for entry in cell.get("distributions", []):
                row = {name: entry.get(name) for name in ("count", "mean", "min", "max", *names)}
                for name, (low, high) in entry.get("intervals", {}).items():
                    row |= {f"{name}_low": low, f"{name}_high": high}
                metric = self.metrics.get(entry["metric"])
                unit = {"unit": metric.unit if metric else ""}
                rows.append(
                    {"cell": index, "metric": entry["metric"], "subject": entry["subject"]} | row | unit
                )
        columns = ["mean", "min", *(name + end for name in names for end in ("", "_low", "_high")), "max"]
        numbers = {"count": pa.uint64()} | dict.fromkeys(columns, pa.float64())
        return pa.Table.from_pylist(rows, pa.schema(HEAD | numbers | {"unit": pa.string()}))

    def distributions(self) -> pa.Table:
        """Returns the distributions over the runs of each cell: ``cell``, ``metric``, ``subject``,
        ``value_ns``, ``count``. Values without a unit (``app.mos``) are in billionths. The table is empty if
        none were measured."""
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
        """Returns :meth:`series` as a data frame, with ``time_s`` in seconds and a column per swept path."""
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
        """Writes the report as a self-contained HTML page."""
        self._recorded.write_page(Path(path))

    def _repr_html_(self) -> str:
        return _page(json.loads(self._recorded.report()))

    def __repr__(self) -> str:
        cells = len(self.data["cells"])
        runs = f"{cells} × {self.data['repeat']} runs"
        return f"<netstage.Record {self.folder}: {self.title}, {runs} on {self.stage}>"


class Comparison:
    """Comparison of several records, displayed with tables and figures in notebooks."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = [record._recorded for record in records]
        self.data: dict[str, Any] = json.loads(_netstage.compare(self._records))
        """Tables, verdicts and figures of the report."""

    def write_report(self, path: str | os.PathLike[str]) -> None:
        """Writes the comparison as a self-contained HTML page."""
        _netstage.compare(self._records, Path(path))

    def _repr_html_(self) -> str:
        return _page(self.data)


def compare(*records: Record) -> Comparison:
    """Compares records. Differences are relative to the first."""
    return Comparison(records)


def _names(column: pa.ChunkedArray[Any]) -> list[str]:
    """Returns the distinct texts of a column."""
    return [str(name) for name in pc.unique(column).to_pylist()]


def _matching(patterns: list[str], names: list[str]) -> tuple[list[str], list[str]]:
    """Returns the names that match any pattern, and the patterns that no name matches."""
    found = {
        pattern: set(filter(re.compile(re.escape(pattern).replace(r"\*", ".*")).fullmatch, names))
        for pattern in patterns
    }
    return sorted(set().union(*found.values())), [pattern for pattern in patterns if not found[pattern]]


def _require_known(kind: str, names: Iterable[Any], known: Sequence[Any]) -> None:
    """Raises an error with a suggestion for a name that the record does not contain."""
    texts = [str(value) for value in known]
    for name in names:
        if name not in known:
            help = "give a number instead of a string" if name in texts else _suggestion(str(name), texts)
            raise ArgumentError(f"this record has no {kind} {name}" + (f": {help}" if help else ""))


def _suggestion(written: str, known: list[str]) -> str | None:
    """Returns a suggestion: the members or receivers of a flow group, or a similar name."""
    for suffix in ("[*]", "@*"):
        if _matching([written + suffix], known)[0]:
            return f"did you mean `{written}{suffix}`?"
    return _netstage.did_you_mean(written, known)


def _number(text: str | None) -> float | str | None:
    """Returns a swept value as a number if possible."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _page(data: dict[str, Any]) -> str:
    """Returns the title, warnings, verdicts and main tables of a report as HTML for a notebook."""

    def escape(text: str) -> str:
        # HTML does not allow control characters.
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
