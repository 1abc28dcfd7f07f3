"""The package as installed against its own types: its sources, the stubs of what is Rust, readers' code."""

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


def said_by(*command: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def run(*command: str) -> None:
    code, said = said_by(*command)
    assert code == 0, said


def test_types_hold() -> None:
    run("mypy", "--config-file", str(CONFIGURATION))


def test_stubs_are_those_of_the_module() -> None:
    run("mypy.stubtest", "netstage._netstage")


def test_code_of_readers_has_types() -> None:
    for page in ("python", "record"):
        Path(f"reader_of_{page}.py").write_text("\n".join(blocks(f"{page}.md")))
    run("mypy", "--strict", "reader_of_python.py", "reader_of_record.py")


def test_mistakes_of_readers_are_found() -> None:
    code = """\
import netstage
record = netstage.Scenario.load("a.toml").run(on="moon", repeat="3")
print(record.serie("flow.throughput"), record.passes + "yes")
"""
    Path("reader.py").write_text(code)
    status, said = said_by("mypy", "--strict", "reader.py")
    assert status == 1 and said.count("error:") == 4, said
