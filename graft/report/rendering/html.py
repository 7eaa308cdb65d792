"""A report as one HTML file: styles, figures and scripts are inside, and nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from graft.report.interactive.scripts import write_scripts
from graft.report.rendering.document import Block, Document, Heading, Paragraph, Picture, Table
from graft.report.rendering.formatting import plain

STYLE = Path(__file__).with_name("style.css")
"""The style sheet of reports and of the dashboard, in light, dark and print."""
MATRIX_SCRIPT = Path(__file__).with_name("matrix.js")
"""The script that sorts a matrix in either."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>{script}
</body>
</html>
"""


def write(document: Document, path: Path) -> None:
    """Write the report to one file that opens without a network."""
    body = "\n".join(map(element, document.blocks))
    path.write_text(page(document.title, body), encoding="utf-8")


def page(title: str, body: str, script: str = "") -> str:
    """Return a page that runs `script` and its figures' scripts alone; `title` is no code."""
    scripts, policy = write_scripts(body, script)
    return _PAGE.format(
        title=escape(plain(title)),
        style=STYLE.read_text(encoding="utf-8"),
        body=plain(body),
        script=scripts,
        policy=_POLICY + policy,
    )


def element(block: Block) -> str:
    """Return one block as HTML."""
    match block:
        case Heading(text=text):
            return f"<h2>{escape(text)}</h2>"
        case Paragraph(text=text):
            return f"<p>{escape(text)}</p>"
        case Table(caption=caption, folded=False):
            return _table(block, f"<caption>{escape(caption)}</caption>")
        case Table(caption=caption):
            return f"<details>\n<summary>{escape(caption)}</summary>\n{_table(block, '')}\n</details>"
        case Picture(number=number, caption=caption, svg=svg):
            name = f'<figcaption id="caption{number}"><b>Figure {number}.</b> {escape(caption)}</figcaption>'
            return f'<figure aria-labelledby="caption{number}">\n<div>{svg}</div>\n{name}\n</figure>'


def _table(table: Table, caption: str) -> str:
    header = _row("th", ' scope="col"', table.header, table.labels)
    rows = "\n".join(_row("td", "", row, table.labels) for row in table.rows)
    whole = f"<table>{caption}\n<thead>\n{header}\n</thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="wide" tabindex="0">{whole}</div>'


def _row(tag: str, attributes: str, cells: Sequence[str], labels: int) -> str:
    """Return one row; a number's cell has the class that sets it to the right."""
    marks = ["" if column < labels else ' class="n"' for column in range(len(cells))]
    inside = [f"<{tag}{attributes}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)]
    return f"<tr>{''.join(inside)}</tr>"
