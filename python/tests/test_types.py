"""The package against its own types: the sources, and the stubs of what is Rust."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1]


def test_types_hold() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_are_those_of_the_module() -> None:
    command = [sys.executable, "-m", "mypy.stubtest", "netstage._netstage"]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
