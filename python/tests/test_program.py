"""Tests of ``python -m netstage``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netstage import _netstage, program
from netstage.engine import find_program
from netstage.errors import MissingError


def module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netstage", *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def test_module_runs_the_program_with_its_arguments_and_exit_code(tmp_path: Path) -> None:
    try:
        found = find_program()
    except MissingError as error:
        pytest.skip(str(error))
    assert module("--version", NETSTAGE=str(found)).stdout.strip() == _netstage.TOOL
    missing = module("check", str(tmp_path / "missing.toml"), NETSTAGE=str(found))
    assert missing.returncode == subprocess.run([found, "check", tmp_path / "missing.toml"]).returncode
    assert "missing.toml" in missing.stderr


def test_a_program_that_cannot_run_is_an_error() -> None:
    output = module("--version", NETSTAGE="/nowhere/netstage")
    assert output.returncode == 1
    assert output.stderr == "error: cannot run /nowhere/netstage: No such file or directory\n"


def test_the_program_of_a_target_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bin" / "netstage"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setattr(program, "__file__", str(tmp_path / "netstage" / "program.py"))
    monkeypatch.setattr(program, "files", lambda _: None)
    assert program.installed() == str(path.resolve())
