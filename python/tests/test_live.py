"""Tests of runs on a fleet, with two agents on the loopback interface."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import netstage
from netstage.engine import find_program

LIMIT_S = 120
"""Timeout that suffices for all tests on any machine."""

TWO = """\
[scenario]
title = "Two agents"
duration = "1 s"

[node.a]
[node.b]

[link.line]
ends = ["a", "b"]
rate = "10 Mbit/s"
buffer = "50 packets"

[flow.voice]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "800 kbit/s", packet = "200 B" }

[place]
a = { agent = "one", address = "127.77.0.1" }
b = { agent = "two", address = "127.77.0.2" }

[measure]
interval = "100 ms"

[expect.voice]
metric = "flow.throughput"
subject = "voice"
at_least = "0.1 Mbit/s"

[plot.throughput]
metric = "flow.throughput"
"""


def within_limit(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def fleet(own_folder: Path) -> Iterator[Path]:
    """Folder of a fleet with a running controller and two agents."""
    try:
        program = find_program()
    except netstage.MissingError as missing:
        pytest.skip(str(missing))
    folder = own_folder / "fleet"
    environment = {**os.environ, "NETSTAGE_FLEET": str(folder)}

    def well(*arguments: str) -> str:
        command = [str(program), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        controller = f"127.0.0.1:{free.getsockname()[1]}"
    processes = []

    def start(log: str, *arguments: str) -> None:
        with Path(log).open("w") as log_file:
            command = [str(program), *arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=log_file, stderr=log_file))

    try:
        well("fleet", "init", "--name", "lab")
        start("hub.log", "fleet", "serve", "--listen", controller)
        within_limit(lambda: "listening for agents on" in Path("hub.log").read_text())
        Path("agent.toml").write_text('[policy]\ncontrollers = ["lab"]\ndestinations = ["127.77.0.0/16"]\n')
        for name in ("one", "two"):
            well("fleet", "join", controller, well("fleet", "token", name).strip(), "--state", name)
            start(f"{name}.log", "agent", "--state", name, "--policy", "agent.toml")
        within_limit(lambda: well("fleet", "ls").count("idle") == 2)
        yield folder
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(LIMIT_S)


def test_a_scenario_runs_on_agents_of_a_fleet(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = netstage.Scenario.from_text(TWO, name="two.toml")
    record = scenario.run(on="live", fleet=fleet, retries=2, out="named")
    assert record.stage == "live"
    assert record.series("flow.throughput", "voice").num_rows == 10
    assert "flow.clock_error" in record.metrics
    # The default fleet of the program.
    monkeypatch.setenv("NETSTAGE_FLEET", str(fleet))
    assert scenario.run(on="live", retries=2, out="of-environment").stage == "live"
    with pytest.raises(netstage.ScenarioError, match="there is no agent three"):
        scenario.run(on="live", set={"place.b.agent": "three"}, out="nobody")
