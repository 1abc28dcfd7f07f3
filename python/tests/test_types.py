"""The package as it is installed against its own types: the sources, and the stubs of what is Rust."""

import subprocess
import sys
from pathlib import Path

CONFIGURATION = Path(__file__).parents[1] / "pyproject.toml"


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_hold() -> None:
    run("mypy", "--config-file", str(CONFIGURATION))


def test_stubs_are_those_of_the_module() -> None:
    run("mypy.stubtest", "netstage._netstage")
