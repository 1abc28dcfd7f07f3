"""What the pages of docs/results have in common: tables, and notes with places where these go."""

import pathlib
import re
import shutil
import subprocess
import tempfile


def table(header: list, rows: list, left: int = 1) -> str:
    """A table whose first `left` columns are text, the others numbers."""
    rule = [":--"] * left + ["--:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [header, rule, *rows]) + "\n"


def draw(program: str, record: pathlib.Path, pictures: dict, to: pathlib.Path):
    """Draws figures of a record, each as the file it is to be there."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "report", record, "--svg", folder], check=True, stdout=subprocess.DEVNULL)
        for figure, file in pictures.items():
            shutil.copyfile(pathlib.Path(folder) / f"{figure}.svg", to / f"{file}.svg")


def write(page: pathlib.Path, parts: dict):
    """Writes a page from the notes beside it, the parts in place of their {{names}}."""
    notes = page.with_suffix(".notes.md").read_text().split("---\n", 1)[1]
    page.write_text(re.sub(r"\{\{([a-z0-9-]+)\}\}\n", lambda found: parts[found[1]], notes).lstrip())


def marks(name: str) -> tuple:
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"


def marked(page: pathlib.Path, name: str) -> str:
    """The part of a page between its marks."""
    begin, end = marks(name)
    return page.read_text().split(begin, 1)[1].split(end, 1)[0]


def mark(page: pathlib.Path, name: str, text: str):
    """Writes that part anew."""
    begin, end = marks(name)
    before, rest = page.read_text().split(begin, 1)
    page.write_text(before + begin + text + end + rest.split(end, 1)[1])
