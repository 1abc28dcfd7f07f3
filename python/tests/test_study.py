"""Runs performed elsewhere, whatever brings them: what every engine that spreads runs rests on."""

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


def elsewhere(run: tuple[int, int]) -> bytes:
    return _netstage.perform(checked(), *run)


def test_runs_of_other_processes_make_the_same_record() -> None:
    here = netstage.Scenario.from_text(LINE, name="line.toml").run(set=TIMED, vary=dict(VARY), out="here")
    study = _netstage.Study(checked(), "elsewhere")
    assert (len(study.pending), study.total) == (6, 6)
    assert study.identity == checked().identity("sim") == here.plan
    runs = study.pending[::-1]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for (cell, seed), file in zip(runs, pool.map(elsewhere, runs), strict=True):
            study.keep(cell, seed, file)
    study.finish(2)
    for name in ("record.json", "series.parquet", "figures.json", "distributions.parquet"):
        assert Path("here", name).read_bytes() == Path("elsewhere", name).read_bytes(), name


def test_what_is_not_the_run_is_not_kept() -> None:
    study = _netstage.Study(checked(), "study")
    file = _netstage.perform(checked(), 1, 1)
    with pytest.raises(netstage.RunError, match="what came back is the run of cell 1 with seed 1"):
        study.keep(2, 1, file)
    for wrong in (b"", b"nonsense", file[:-7]):
        with pytest.raises(netstage.RunError):
            study.keep(1, 1, wrong)
    with pytest.raises(ValueError, match="there is no cell 9"):
        _netstage.perform(checked(), 9, 1)
    study.keep(1, 1, file)
    study.close()
    with pytest.raises(ValueError, match="this study is over"):
        study.keep(1, 1, file)
    again = _netstage.Study(checked(), "study")
    assert (1, 1) not in again.pending and len(again.pending) == 5
    with pytest.raises(netstage.FolderError, match="another netstage is writing"):
        _netstage.Study(checked(), "study")
