"""A report as a Markdown file, with its figures as SVG files beside it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from graft.report.rendering.document import Block, Document, Heading, Paragraph, Picture, Table
from graft.report.rendering.drawing import save
from graft.report.rendering.formatting import plain

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&~#$])")


def write(document: Document, path: Path) -> None:
    """Write the report, and figure N to `<stem>_figureN.svg`."""
    for block in document.blocks:
        if isinstance(block, Picture):
            save(block.svg, _beside(path, block.number))
    blocks = (_block(block, path) for block in document.blocks)
    text = "\n\n".join([f"# {_escape(document.title)}", *blocks])
    path.write_text(plain(f"{text}\n"), encoding="utf-8")


def _beside(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}_figure{number}.svg")


def _escape(text: str) -> str:
    """Return text that Markdown and the HTML inside it leave alone, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _block(block: Block, path: Path) -> str:
    match block:
        case Heading(text=text):
            return f"## {_escape(text)}"
        case Paragraph(text=text):
            return _escape(text)
        case Table():
            rule = ("---" if place < block.labels else "---:" for place in range(len(block.header)))
            rows = [map(_escape, block.header), rule, *(map(_escape, row) for row in block.rows)]
            lines = (f"| {' | '.join(cells)} |" for cells in rows)
            return "\n".join([f"{_escape(block.caption)}\n", *lines])
        case Picture(number=number, caption=caption):
            address = quote(_beside(path, number).name)
            return f"![Figure {number}]({address})\n\n**Figure {number}.** {_escape(caption)}"
