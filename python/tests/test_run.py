"""Tests of runs: records identical to the program's, progress, interruption, folders."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import netstage
from conftest import LINE, ROOT
from netstage.engine import find_program
from netstage.progress import listening

FILES = ("record.json", "series.parquet", "figures.json", "distributions.parquet")


@pytest.fixture
def program() -> Path:
    try:
        return find_program()
    except netstage.MissingError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_a_record_is_identical_to_the_programs(program: Path, line_end: str) -> None:
    text = (ROOT / "scenarios/examples/fair-two-vpns.toml").read_text()
    text += '[flow.call]\nfrom = "gold-a"\nto = "gold-b"\nvpn = "gold"\ntransport = "udp"\n'
    text += 'traffic = { model = "cbr", rate = "100 kbit/s", packet = "200 B" }\n[measure]\ndelay = true\n'
    scenario = Path("fair.toml")
    scenario.write_bytes(text.replace("\n", line_end).encode())
    varied = [
        "--vary",
        "vpn.*.weight=1,2",
        "--set",
        'scenario.duration="5 s"',
        "--seed",
        "3",
        "--repeat",
        "2",
    ]
    # An expectation may fail on so short a run: that is exit code 3.
    status = subprocess.run(
        [program, "run", scenario, *varied, "--out", "program"], stdout=subprocess.DEVNULL
    )
    assert status.returncode in (0, 3)
    netstage.Scenario.load(scenario).run(
        set={"scenario.duration": "5 s"}, vary={"vpn.*.weight": [1, 2]}, seed=3, repeat=2, out="python"
    )
    for name in FILES:
        assert Path("python", name).read_bytes() == Path("program", name).read_bytes(), name


def test_real_packets_are_sent_between_namespaces(program: Path, line: netstage.Scenario) -> None:
    try:
        record = line.run(on="emu", repeat=1, retries=2, out="emu")
    except netstage.MissingError as missing:
        pytest.skip(str(missing))
    assert record.stage == "emu"
    assert record.series("flow.throughput").num_rows == 9


def test_progress_is_reported_until_the_end(line: netstage.Scenario) -> None:
    reports: list[netstage.Progress] = []
    line.run(progress=reports.append, repeat=5)
    assert (reports[0].done, reports[0].total, reports[0].left_s) == (0, 5, None)
    assert reports[-1].done == 5 and [p.done for p in reports] == sorted(p.done for p in reports)


def test_a_single_run_reports_progress_and_remaining_time(long_line: netstage.Scenario) -> None:
    def enough(progress: netstage.Progress) -> None:
        if 0 < progress.in_progress < 1 and progress.left_s:
            assert (progress.done, progress.total) == (0, 1)
            raise StopIteration

    with pytest.raises(StopIteration):
        long_line.run(progress=enough, repeat=1)


def test_a_bar_shows_runs_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    with listening(True) as listener:
        assert listener
        listener(1, 4, 0.5, 90.0, "flows")
    assert "38 %|" in (shown := capsys.readouterr().err)
    assert "1 of 4 runs" in shown and "01:30 left, flows" in shown


def test_an_exception_of_a_listener_stops_the_study(long_line: netstage.Scenario) -> None:
    def refuse(_: netstage.Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough") as caught:
        long_line.run(progress=refuse, repeat=50, out="stopped")
    assert "of 50 runs are kept in stopped" in caught.value.__notes__[0]


def test_other_threads_run_during_a_study(long_line: netstage.Scenario) -> None:
    counted = 0
    over = threading.Event()

    def count() -> None:
        nonlocal counted
        while not over.is_set():
            counted += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        # The end depends on the other thread instead of a clock.
        def enough(_: netstage.Progress) -> None:
            if counted > 20:
                raise StopIteration

        with pytest.raises(StopIteration):
            long_line.run(progress=enough, repeat=1000, jobs=1)
    finally:
        over.set()
        thread.join()


STUDY = """
import netstage, signal, sys
# Background processes of a shell and their children ignore the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
scenario = netstage.Scenario.load("line.toml")
runs = int(sys.argv[1])
def report(progress):
    print(progress.done, flush=True)
scenario.run(repeat=runs, jobs=1, out="record", progress=report)
"""


def test_a_study_is_resumed_after_ctrl_c() -> None:
    Path("line.toml").write_text(LINE.replace('"3 s"', '"60 s"'))
    started = subprocess.Popen(
        [sys.executable, "-c", STUDY, "200"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout and started.stderr
    while int(started.stdout.readline()) < 2:
        pass
    started.send_signal(signal.SIGINT)
    _, errors = started.communicate()
    assert "KeyboardInterrupt" in errors and "of 200 runs are kept in record" in errors, errors
    kept = len(list(Path("record/runs").glob("*.parquet")))
    assert 2 <= kept < 200
    with pytest.raises(netstage.RecordError, match="unfinished"):
        netstage.Record.open("record")
    record = netstage.Scenario.load("line.toml").run(repeat=200, out="record")
    assert record.environment["resumed_runs"] == kept
    whole = netstage.Scenario.load("line.toml").run(repeat=200, out="whole")
    assert record.data == whole.data


def test_an_occupied_folder_is_not_changed(line: netstage.Scenario) -> None:
    first = line.run()
    assert first.folder == Path("out/line")
    with pytest.raises(netstage.FolderError, match="already holds this study"):
        line.run()
    again = line.run(reuse=True)
    assert again.data == first.data
    with pytest.raises(netstage.FolderError, match="another study"):
        line.run(seed=5, reuse=True)


def test_a_rejected_run_leaves_its_folder_unused(line: netstage.Scenario) -> None:
    for arguments in ({"set": {"link.line.queue": "priority"}}, {"retries": -1}, {"repeat": 0}):
        with pytest.raises(netstage.Error):
            line.run(out="record", **arguments)  # type: ignore[arg-type]
    assert line.run(out="record").passes


@pytest.mark.parametrize("jobs", [0, -1, 65_536, 10**30, True, 1.5, "2"])
def test_jobs_are_a_whole_number(line: netstage.Scenario, jobs: object) -> None:
    with pytest.raises(
        netstage.ArgumentError, match=rf"jobs: expected an integer from 1 to 65535, found '?{jobs}"
    ):
        line.run(jobs=jobs)  # type: ignore[arg-type]
    assert not Path("out").exists()


def test_jobs_may_be_a_numpy_integer_or_exceed_the_runs(line: netstage.Scenario) -> None:
    numpy = pytest.importorskip("numpy")
    assert line.run(jobs=numpy.int64(2), out="two").data == line.run(jobs=1000, out="many").data


@pytest.mark.parametrize("seed", [-1, 2**53, 2**64, 2**70, True, 1.5, "1"])
def test_a_seed_is_a_whole_number_of_53_bits(line: netstage.Scenario, seed: object) -> None:
    with pytest.raises(netstage.ScenarioError, match="expected a whole number from 0 to 9007199254740991"):
        line.run(seed=seed)  # type: ignore[arg-type]


def test_the_last_seed_must_be_within_bounds(line: netstage.Scenario) -> None:
    last = 2**53 - 1
    assert line.check(seed=last, repeat=1).seeds == range(last, last + 1)
    with pytest.raises(netstage.ScenarioError, match="would exceed 9007199254740991"):
        line.check(seed=last, repeat=2)


def test_unknown_arguments_and_missing_programs_are_reported(
    line: netstage.Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="unknown engine"):
        line.run(engine="slurm")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown stage"):
        line.run(on="moon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="requires on="):
        line.run(on="emu", engine="ray")
    with pytest.raises(netstage.MissingError, match=r"there is no fleet in .*nowhere"):
        line.run(on="live", fleet="nowhere")
    monkeypatch.setenv("NETSTAGE_FLEET", "elsewhere")
    with pytest.raises(netstage.MissingError, match=r"there is no fleet in .*elsewhere"):
        line.run(on="live")
    with pytest.raises(ValueError, match="requires on="):
        line.run(fleet="nowhere")
    monkeypatch.setenv("NETSTAGE", "/nowhere/netstage")
    with pytest.raises(netstage.MissingError, match="does not run"):
        line.run(on="emu")
    monkeypatch.setenv("NETSTAGE", sys.executable)
    with pytest.raises(netstage.MissingError, match="this package is netstage"):
        line.run(on="emu")
