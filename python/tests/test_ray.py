"""Tests of studies on a Ray cluster of several processes: identical records, lost workers, resumption."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import netstage
from conftest import CBR, LINE, ROOT

pytestmark = pytest.mark.long
ray = pytest.importorskip("ray")

FILES = ("record.json", "series.parquet", "figures.json", "distributions.parquet")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


def workers() -> list[int]:
    """Returns the worker processes of the test's cluster that perform runs."""
    parents, names = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            names[int(fields["Pid"])] = (status.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        parents[int(fields["Pid"])] = int(fields["PPid"])

    def ours(process: int) -> bool:
        while process > 1:
            if process == os.getpid():
                return True
            process = parents.get(process, 0)
        return False

    return [process for process, name in names.items() if name.startswith("ray::perform") and ours(process)]


@pytest.fixture
def study() -> netstage.Scenario:
    scenario = netstage.Scenario.from_text(LINE, name="line.toml")
    scenario.update({"scenario.duration": "100 s", "scenario.repeat": 10, "measure": {"delay": True}})
    scenario["flow.call"] = {"from": "a", "to": "b", "transport": "udp", "traffic": CBR}
    return scenario


VARY = {"link.line.delay": ["5 ms", "20 ms", "50 ms"]}


def assert_same(one: str, other: str) -> None:
    for name in FILES:
        assert Path(one, name).read_bytes() == Path(other, name).read_bytes(), name


def test_the_record_is_the_same_after_killed_workers(study: netstage.Scenario) -> None:
    study.run(vary=VARY, out="local")
    killed: list[int] = []

    def kill(progress: netstage.Progress) -> None:
        if progress.done > 0 and len(killed) < 3:
            for worker in workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    record = study.run(vary=VARY, out="ray", engine="ray", progress=kill)
    assert len(set(killed)) == 3
    assert record.environment["jobs"] == 3
    assert_same("local", "ray")


def test_an_interrupted_study_is_resumed_by_either_engine(study: netstage.Scenario) -> None:
    study.run(vary=VARY, out="whole")
    for first, second in (("ray", "local"), ("local", "ray")):

        def interrupt(progress: netstage.Progress) -> None:
            if progress.done >= 5:
                raise KeyboardInterrupt

        out = f"{first}-{second}"
        with pytest.raises(KeyboardInterrupt) as caught:
            study.run(vary=VARY, out=out, engine=first, progress=interrupt)  # type: ignore[arg-type]
        assert "of 30 runs are kept" in caught.value.__notes__[0]
        record = study.run(vary=VARY, out=out, engine=second)  # type: ignore[arg-type]
        assert record.environment["resumed_runs"] >= 5
        assert_same("whole", out)


def test_files_of_a_scenario_are_sent_to_workers() -> None:
    scenario = netstage.Scenario.load(ROOT / "scenarios/examples/traffic-patterns.toml")
    short = {"scenario.duration": "5 s", "measure": {"delay": True}}
    scenario.run(set=short, out="local")
    scenario.run(set=short, out="ray", engine="ray")
    assert_same("local", "ray")


def test_an_error_of_a_worker_fails_the_study(study: netstage.Scenario) -> None:
    study["link.line.queue"] = "priority"
    for engine in ("local", "ray"):
        with pytest.raises(netstage.ScenarioError, match='queue "priority" is not simulated'):
            study.run(out=engine, engine=engine)  # type: ignore[arg-type]


def test_a_worker_with_another_netstage_is_detected(
    study: netstage.Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    from netstage import cluster

    class Other(cluster.Source):
        def __init__(self, identity: str, *rest: object) -> None:
            super().__init__("0" * len(identity), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "Source", Other)
    with pytest.raises(netstage.RunError, match="install the same package"):
        study.run(out="other", engine="ray")
