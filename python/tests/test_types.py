"""Tests of the types of the installed package: its sources, the stubs of the Rust part, and users' code."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_docs import blocks

CONFIGURATION = Path(__file__).parents[1] / "pyproject.toml"


@pytest.fixture(scope="module", autouse=True)
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MYPY_CACHE_DIR", str(tmp_path_factory.mktemp("types")))
        yield


def run_module(*command: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def run(*command: str) -> None:
    code, output = run_module(*command)
    assert code == 0, output


def test_the_package_has_correct_types() -> None:
    run("mypy", "--config-file", str(CONFIGURATION))


def test_stubs_match_the_module() -> None:
    run("mypy.stubtest", "netstage._netstage")


def test_code_of_the_documentation_has_correct_types() -> None:
    for page in ("python", "record"):
        Path(f"reader_of_{page}.py").write_text("\n".join(blocks(f"{page}.md")))
    run("mypy", "--strict", "reader_of_python.py", "reader_of_record.py")


def test_errors_in_users_code_are_found() -> None:
    code = """\
import netstage
record = netstage.Scenario.load("a.toml").run(on="moon", repeat="3")
print(record.serie("flow.throughput"), record.passes + "yes")
"""
    Path("reader.py").write_text(code)
    status, output = run_module("mypy", "--strict", "reader.py")
    assert status == 1 and output.count("error:") == 4, output
