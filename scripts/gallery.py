#!/usr/bin/env python3
"""Writes docs/gallery.md: every figure of docs/results as a thumbnail, page by page."""

import html
import pathlib
import re

DOCS = pathlib.Path(__file__).parents[1] / "docs"
COLUMNS = 3

HEAD = """# Gallery

Written by `make figures` and those beside it; do not edit. Figures of the reports behind [docs/results](results), page by page; each leads to the
whole picture. `netstage report RECORD --svg DIR` makes such pictures of any record, `netstage run` a page with all of them,
to be zoomed and read value by value.
"""


def title(picture: pathlib.Path) -> str:
    """A picture's first text, which is its title."""
    found = re.search(r"<text[^>]*>\s*(.*?)\s*</text>", picture.read_text(), re.DOTALL)
    return html.unescape(found[1]) if found else picture.stem


def section(page: pathlib.Path) -> str:
    """The heading of a page of results, and its figures in a table; nothing where it has none."""
    text = page.read_text()
    pictures = [page.with_name(name) for name in dict.fromkeys(re.findall(r"\(([\w.-]+\.svg)\)", text))]
    if not pictures:
        return ""
    cells = [
        f'<td><a href="results/{picture.name}"><img src="results/{picture.name}" width="250" '
        f'alt="{html.escape(title(picture))}"></a></td>'
        for picture in pictures
    ]
    rows = ["".join(cells[at : at + COLUMNS]) for at in range(0, len(cells), COLUMNS)]
    heading = text.split("\n", 1)[0].removeprefix("# ")
    table = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"\n## [{heading}](results/{page.name})\n\n<table>\n{table}\n</table>\n"


pages = [page for page in sorted((DOCS / "results").glob("*.md")) if ".notes" not in page.name]
(DOCS / "gallery.md").write_text(HEAD + "".join(map(section, pages)))
