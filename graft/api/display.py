"""How spaces, studies and trials look in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import polars as pl

from graft.files import OutputError, cell, writing
from graft.report.rendering.document import Picture

_ROWS = 50


@dataclass(frozen=True, repr=False)
class Figures:
    """Figures that a notebook shows, and that can be written to files."""

    pictures: Sequence[Picture]

    def __repr__(self) -> str:
        return "\n".join(f"<figure: {one.caption}>" for one in self.pictures)

    def _repr_html_(self) -> str:
        return "\n".join(
            f"<figure>{one.svg}<figcaption>{escape(one.caption)}</figcaption></figure>" for one in self.pictures
        )

    def save(self, path: str | Path) -> None:
        """Write an .svg file; several figures get `-1`, `-2` behind the name. Raises OutputError."""
        path = Path(path)
        if path.suffix != ".svg":
            raise OutputError(f"{path}: the ending must be .svg")
        for index, one in enumerate(self.pictures, 1):
            target = path if len(self.pictures) == 1 else path.with_stem(f"{path.stem}-{index}")
            with writing(target):
                target.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{one.svg}\n', encoding="utf-8")


def frame_table(frame: pl.DataFrame) -> str:
    """Return a frame as an HTML table, at most its first rows."""
    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    rows = ("".join(f"<td>{escape(cell(value))}</td>" for value in row) for row in frame.head(_ROWS).iter_rows())
    more = f"<p>{_ROWS} of {frame.height:,} rows</p>" if frame.height > _ROWS else ""
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{more}"


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Facts with their labels as an HTML table."""
    lines = [
        f'<tr><th style="text-align: left">{escape(label)}</th>'
        f'<td style="text-align: left">{escape(cell(value))}</td></tr>'
        for label, value in rows
    ]
    return f"<table>{''.join(lines)}</table>"
