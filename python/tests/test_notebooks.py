"""Tests of the notebooks: execution of all cells."""

import shutil
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.long
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = ROOT / "python/notebooks"


def executed(name: str, folder: Path) -> str:
    """Executes a notebook and returns the output of its cells, with pictures and tables."""
    # A copy in a folder with its inputs, which is removed with the test.
    place = folder / "python/notebooks"
    shutil.copytree(NOTEBOOKS, place, ignore=shutil.ignore_patterns("out", "*.json"))
    (folder / "scenarios").symlink_to(ROOT / "scenarios")
    book = nbformat.read(place / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=None, resources={"metadata": {"path": str(place)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(str(output.get("text", "")) + str(output.get("data", "")) for output in outputs)


def test_figure_2_is_reproduced(tmp_path: Path) -> None:
    shown = executed("figure-2", tmp_path)
    assert "image/svg+xml" in shown and "Inter-VPN fairness over time" in shown
    assert "✓ fair" in shown and "✗ fair" not in shown


def test_a_weight_is_found_for_the_learned_application(tmp_path: Path) -> None:
    shown = executed("which-weight", tmp_path)
    assert "tcp port 8080" in shown and "Time to an answer" in shown
    weight = float(shown.split("weight needed: ")[1].split()[0])
    assert 0.25 < weight <= 4


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert all(
        not cell.outputs and cell.execution_count is None for cell in cells if cell.cell_type == "code"
    )
