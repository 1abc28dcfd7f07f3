"""Tests of the Python code in docs/python.md and docs/record.md."""

import os
import re

import pytest

import netstage
from conftest import ROOT


def blocks(page: str) -> list[str]:
    """Returns the code blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["python.md", "record.md"])
def test_the_code_of_pages_runs(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pandas")
    os.symlink(ROOT / "scenarios", "scenarios")
    if page == "record.md":
        # The page reads existing records.
        for name, file in (("fig2", "papers/i2vfc/fig2"), ("voice", "examples/traffic-patterns")):
            scenario = netstage.Scenario.load(f"scenarios/{file}.toml")
            short = {"scenario.duration": "8 s", "measure": {"delay": True}}
            scenario.run(set=short, repeat=1, out=f"out/{name}")
    code = blocks(page)
    assert code
    exec("\n".join(code), {})
    if page == "python.md":
        assert "line.toml 11 1 unknown field `rte` in a link did you mean `rate`?" in capsys.readouterr().out
