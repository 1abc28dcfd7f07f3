"""Support of the tests: small scenarios, and a separate folder for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

import netstage

ROOT = Path(__file__).parents[2]

LINE = """\
[scenario]
title = "One line"
duration = "3 s"
repeat = 2

[node.a]
[node.b]

[link.line]
ends = ["a", "b"]
rate = "10 Mbit/s"
delay = "5 ms"
loss = 0.001

[flow.up]
from = "a"
to = "b"
count = 3
stagger = "100 ms"

[expect.used]
metric = "flow.throughput"
subject = "up[*]"
at_least = "1 Mbit/s"
claim = "the line is used"

[plot.shares]
metric = "flow.throughput"
title = "Shares <of> the line"
"""


CBR = {"model": "cbr", "rate": "100 kbit/s", "packet": "200 B"}


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def line() -> netstage.Scenario:
    return netstage.Scenario.from_text(LINE, name="line.toml")


@pytest.fixture
def long_line(line: netstage.Scenario) -> netstage.Scenario:
    """Study that takes several seconds on any machine."""
    line.update({"scenario.duration": "2000 s", "link.line.rate": "50 Mbit/s"})
    return line
