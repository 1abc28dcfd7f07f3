"""Tests of records: tables and figures."""

import copy
import math
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest

import netstage
from conftest import CBR, LINE


@pytest.fixture
def record(line: netstage.Scenario) -> netstage.Record:
    return line.run(vary={"link.line.delay": ["5 ms", "50 ms"], "flow.up.count": [2, 3]}, out="record")


def test_series_are_selected(record: netstage.Record) -> None:
    whole = record.series()
    assert whole.num_rows == record.data["series"]["rows"]
    assert whole.column_names == ["cell", "seed", "time_ns", "subject", "metric", "value"]
    assert set(whole["metric"].to_pylist()) <= set(record.metrics)
    some = record.series("flow.throughput", ["up[0]", "up[1]"], cell=[0, 3], seed=1)
    assert some.num_rows == 2 * 2 * 3
    assert set(some["cell"].to_pylist()) == {0, 3} and set(some["seed"].to_pylist()) == {1}
    assert record.series(subject="up[*]")["subject"].unique().to_pylist() == ["up[0]", "up[1]", "up[2]"]
    # Any Arrow library accepts the table.
    assert pa.RecordBatchReader.from_stream(some).read_all() == some
    assert record.metrics["flow.throughput"].unit == "bit/s"
    assert record.metrics["flow.throughput"].layer == "payload"


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"subject": "upp"}, "no subject upp: available: up"),
        ({"subject": ["up[0]", "up[7]"]}, r"no subject up\[7\]: did you mean `up\[0\]`"),
        ({"subject": "up", "metric": "flow.throughput"}, r"no subject up: did you mean `up\[\*\]`"),
        ({"subject": "down*"}, r"no subject down\*"),
        ({"metric": "flow.throughputs"}, "did you mean `flow.throughput`"),
        ({"cell": 4}, "no cell 4: available: 0, 1, 2, 3"),
        ({"cell": "0"}, "no cell 0: give a number instead of a string"),
        ({"seed": [1, 3]}, "no seed 3: available: 1, 2"),
    ],
)
def test_unknown_names_are_rejected(record: netstage.Record, selection: dict[str, Any], message: str) -> None:
    with pytest.raises(netstage.ArgumentError, match=message):
        record.series(**selection)
    # Known names that do not occur together give no rows.
    assert record.series("link.utilization", "up[*]").num_rows == 0


def test_copies_of_a_record_are_independent(record: netstage.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record.data["title"] = "Changed"
    packed = pickle.dumps(record)
    monkeypatch.chdir("/")
    for other in (copy.copy(record), copy.deepcopy(record), pickle.loads(packed)):
        assert other.title == "One line" and other.plan == record.plan
    assert pickle.loads(packed).series().num_rows == record.data["series"]["rows"]


def test_distributions_are_those_of_the_record(line: netstage.Scenario) -> None:
    plain = line.run(out="plain").distributions()
    line["flow.up.transport"] = "udp"
    line["flow.up.traffic"] = CBR
    record = line.run(set={"measure": {"delay": True}}, out="record")
    taken = record.distributions()
    assert plain.num_rows == 0 and plain.column_names == taken.column_names
    assert taken.num_rows == record.data["distributions"]["rows"] > 0
    file = record.folder / "distributions.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(netstage.RecordError, match=r"distributions\.parquet: the file was changed"):
        record.distributions()
    file.unlink()
    with pytest.raises(netstage.RecordError, match=r"distributions\.parquet: No such file"):
        record.distributions()


def test_percentiles_are_those_of_the_distributions(line: netstage.Scenario) -> None:
    line["flow.up.transport"] = "udp"
    line["flow.up.traffic"] = {"model": "dns", "interval": "10 ms"}
    record = line.run(set={"flow.up.count": 2}, vary={"link.line.delay": ["5 ms", "20 ms"]}, out="record")
    table = record.percentiles().to_pylist()
    rows = [row for row in table if row["metric"] == "app.transaction_time"]
    assert [(row["cell"], row["subject"], row["unit"]) for row in rows] == [(0, "up", "s"), (1, "up", "s")]
    counted = record.distributions().to_pylist()
    for row in rows:
        own = [c for c in counted if c["cell"] == row["cell"] and c["metric"] == row["metric"]]
        assert {c["subject"] for c in own} == {"up[0]", "up[1]"}
        values = sorted(value for c in own for value in [c["value_ns"]] * c["count"])
        assert row["count"] == len(values)
        assert (row["min"], row["max"]) == (values[0] / 1e9, values[-1] / 1e9)
        for name, share, needed in (
            ("p50", 0.5, 6),
            ("p90", 0.9, 36),
            ("p99", 0.99, 368),
            ("p999", 0.999, 3688),
        ):
            if len(values) < needed:
                assert row[name] is None and row[f"{name}_low"] is None
                continue
            assert row[name] == values[math.ceil(share * len(values)) - 1] / 1e9
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row["p50"] is not None and row["p999"] is None


def test_files_that_cannot_be_written_or_read_are_named(record: netstage.Record) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: record.write_report("no/where.html"),
        lambda: netstage.compare(record, record).write_report("no/where.html"),
        lambda: next(iter(record.figures.values())).save("no/where.html"),
        lambda: netstage.learn("no/where.html"),
    ]
    for attempt in attempts:
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: 'no/where\.html'"):
            attempt()
    Path("text.pcap").write_text("none")
    with pytest.raises(netstage.CaptureError, match=r"text\.pcap: "):
        netstage.learn("text.pcap")
    with pytest.raises(netstage.ArgumentError, match="flow: "):
        netstage.learn("text.pcap", flow="tcp prot 443")


def test_a_data_frame_has_the_swept_values(record: netstage.Record) -> None:
    pytest.importorskip("pandas")
    frame = record.to_pandas("flow.throughput", "up[*]")
    assert list(frame.columns[:5]) == ["cell", "link.line.delay", "flow.up.count", "seed", "time_s"]
    means = frame.groupby(["link.line.delay", "flow.up.count"]).value.mean()
    summary = record.summary().to_pandas().query("metric == 'flow.throughput' and subject == 'up'")
    assert sorted(means) == pytest.approx(sorted(summary["mean"]))
    assert set(frame["flow.up.count"]) == {2.0, 3.0}
    assert set(frame.time_s) == {0.0, 1.0, 2.0}


def test_missing_packages_are_named(record: netstage.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(netstage.MissingError, match="pip install pandas"):
        record.to_pandas("flow.throughput")
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "netstage.cluster", raising=False)
    with pytest.raises(netstage.MissingError, match="pip install ray"):
        netstage.Scenario.from_text(LINE).run(out="elsewhere", engine="ray")


def test_expectations_have_results(record: netstage.Record) -> None:
    used = record.expectations["used"]
    assert used.passes and record.passes and used.claim == "the line is used"
    assert [cell for cell, _, holds in used.achieved if holds] == [0, 1, 2, 3]


def test_figures_are_pictures_in_a_notebook(record: netstage.Record) -> None:
    figure = record.figures["shares"]
    assert ElementTree.fromstring(figure._repr_svg_()).tag.endswith("svg")
    assert figure.title == "Shares <of> the line" and "Shares &lt;of&gt; the line" in figure.svg
    figure.save("shares.svg")
    assert Path("shares.svg").read_text() == figure.svg
    assert figure.svg in record.figures._repr_html_()
    with pytest.raises(KeyError, match="the figures are shares"):
        record.figures["share"]


def test_html_of_a_record_is_escaped(line: netstage.Scenario) -> None:
    line["scenario.title"] = "<script>alert(1)</script>"
    shown = line.run(out="hostile")._repr_html_()
    assert "<script" not in shown and "&lt;script" in shown and "✓ used" in shown


def test_html_of_a_record_is_well_formed(line: netstage.Scenario) -> None:
    odd = "a\x01b\x1b ]]> & <i>\ufffe"
    line.update({"scenario.title": odd, "plot.shares.title": odd, "plot.shares.claim": odd})
    record = line.run(out="odd")
    for shown in (record, record.figures, netstage.compare(record, record)):
        ElementTree.fromstring(f"<div>{shown._repr_html_()}</div>")


def test_records_are_compared(record: netstage.Record, line: netstage.Scenario) -> None:
    other = line.run(
        seed=9, vary={"link.line.delay": ["5 ms", "50 ms"], "flow.up.count": [2, 3]}, out="other"
    )
    comparison = netstage.compare(record, other)
    assert comparison.data["title"] == "Comparison of record, other"
    assert "<table>" in comparison._repr_html_()
    comparison.write_report("both.html")
    assert Path("both.html").stat().st_size > 10_000


def test_a_damaged_record_is_rejected(record: netstage.Record) -> None:
    file = record.folder / "series.parquet"
    file.write_bytes(file.read_bytes().replace(b"up[0]", b"up[9]"))
    with pytest.raises(netstage.RecordError, match="was changed after the record was written"):
        record.series()
    (record.folder / "record.json").write_text("{}")
    with pytest.raises(netstage.RecordError, match=r"record\.json"):
        netstage.Record.open(record.folder)
    with pytest.raises(netstage.RecordError, match="holds no record"):
        netstage.Record.open("nowhere")
