"""A report as a Markdown file, with its figures as SVG files beside it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

from graft.report.rendering.document import Document, Heading, Paragraph, Picture, Table
from graft.report.rendering.drawing import save
from graft.report.rendering.formatting import plain

_SPECIAL = re.compile(r"([\\`*_\[\]<>|&~#$])")


def write(document: Document, path: Path) -> None:
    """Write the report, and figure N to `<stem>_figureN.svg`."""
    texts = [f"# {_escape(document.title)}"]
    for block in document.blocks:
        match block:
            case Heading(text=text):
                texts.append(f"## {_escape(text)}")
            case Paragraph(text=text):
                texts.append(_escape(text))
            case Table():
                rule = ("---" if column < block.labels else "---:" for column in range(len(block.header)))
                rows = [map(_escape, block.header), rule, *(map(_escape, row) for row in block.rows)]
                lines = (f"| {' | '.join(cells)} |" for cells in rows)
                texts.append("\n".join([f"{_escape(block.caption)}\n", *lines]))
            case Picture(number=number, caption=caption):
                drawn = path.with_name(f"{path.stem}_figure{number}.svg")
                save(block.svg, drawn)
                title = f"**Figure {number}.** {_escape(caption)}"
                texts.append(f"![Figure {number}]({quote(drawn.name)})\n\n{title}")
    whole = "\n\n".join(texts)
    path.write_text(plain(f"{whole}\n"), encoding="utf-8")


def _escape(text: str) -> str:
    """Return text that Markdown and the HTML inside it leave alone, on one line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
