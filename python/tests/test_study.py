"""Tests of runs performed by other processes, as by distributed engines."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import netstage
from conftest import CBR, LINE
from netstage import _netstage

VARY = [("flow.up.count", [1, 2, 3])]
TIMED = {"flow.up.transport": "udp", "flow.up.traffic": CBR, "measure": {"delay": True}}


def checked() -> _netstage.Checked:
    return _netstage.check("line.toml", LINE, None, list(TIMED.items()), VARY)


def perform_remotely(run: tuple[int, int]) -> bytes:
    return _netstage.perform(checked(), *run)


def test_runs_of_other_processes_make_the_same_record() -> None:
    local = netstage.Scenario.from_text(LINE, name="line.toml").run(set=TIMED, vary=dict(VARY), out="local")
    study = _netstage.Study(checked(), "distributed")
    assert (len(study.pending), study.total) == (6, 6)
    assert study.identity == checked().identity("sim") == local.plan
    runs = study.pending[::-1]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for (cell, seed), file in zip(runs, pool.map(perform_remotely, runs), strict=True):
            study.keep(cell, seed, file)
    study.finish(2)
    for name in ("record.json", "series.parquet", "figures.json", "distributions.parquet"):
        assert Path("local", name).read_bytes() == Path("distributed", name).read_bytes(), name


def test_a_file_of_another_run_is_rejected() -> None:
    study = _netstage.Study(checked(), "study")
    file = _netstage.perform(checked(), 1, 1)
    with pytest.raises(netstage.RunError, match="received the run of cell 1 with seed 1"):
        study.keep(2, 1, file)
    for wrong in (b"", b"nonsense", file[:-7]):
        with pytest.raises(netstage.RunError):
            study.keep(1, 1, wrong)
    with pytest.raises(ValueError, match="has no cell 9"):
        _netstage.perform(checked(), 9, 1)
    study.keep(1, 1, file)
    study.close()
    with pytest.raises(ValueError, match="the study is closed"):
        study.keep(1, 1, file)
    reopened = _netstage.Study(checked(), "study")
    assert (1, 1) not in reopened.pending and len(reopened.pending) == 5
    with pytest.raises(netstage.FolderError, match="another netstage is writing"):
        _netstage.Study(checked(), "study")
