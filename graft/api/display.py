"""The display of spaces, studies and trials in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import polars as pl

from graft.files import cell, check_ending, writing
from graft.report.rendering import html
from graft.report.rendering.document import Picture

_ROWS = 50


@dataclass(frozen=True, repr=False)
class Figures:
    """Figures that a notebook shows, and that can be written to files."""

    title: str
    pictures: Sequence[Picture]

    def __repr__(self) -> str:
        return "\n".join(f"<figure: {picture.caption}>" for picture in self.pictures)

    def _repr_html_(self) -> str:
        return "\n".join(
            f"<figure>{picture.svg}<figcaption>{escape(picture.caption)}</figcaption></figure>"
            for picture in self.pictures
        )

    def interactive(self) -> Page:
        """Return the figures as charts that zoom and show their values, to end a notebook's cell.

        A few figures, such as heat maps, stay pictures. The charts add about 390 kB and load
        nothing.
        """
        body = "\n".join(map(html.element, self.pictures))
        return Page(html.page(self.title, f"<div data-live>{body}</div>"))

    def save(self, path: str | Path) -> None:
        """Write an .svg, .png, .pdf or (with charts that zoom) .html file; raises OutputError.

        Several figures become one page, or several pictures with `-1`, `-2` after the name. Figures
        that came over HTTP cannot be written as .png or .pdf.
        """
        from graft.report.rendering.drawing import picture_endings, save

        path = Path(path)
        check_ending(path, [*picture_endings(self.pictures[0].svg), ".html"])
        if path.suffix == ".html":
            with writing(path):
                path.write_text(self.interactive().text, encoding="utf-8")
            return
        for index, picture in enumerate(self.pictures, 1):
            target = path if len(self.pictures) == 1 else path.with_stem(f"{path.stem}-{index}")
            with writing(target):
                save(picture.svg, target)


@dataclass(frozen=True, repr=False)
class Page:
    """A page of HTML that a notebook shows in a frame, isolated from the notebook."""

    text: str

    def __repr__(self) -> str:
        return f"<page of {len(self.text) / 1000:,.0f} kB>"

    def _repr_html_(self) -> str:
        return (
            '<iframe sandbox="allow-scripts allow-downloads" style="width: 100%; height: 40rem; resize: vertical" '
            f'srcdoc="{escape(self.text)}"></iframe>'
        )


def frame_table(frame: pl.DataFrame) -> str:
    """Return a frame as an HTML table, at most its first rows."""
    head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
    rows = ("".join(f"<td>{escape(cell(value))}</td>" for value in row) for row in frame.head(_ROWS).iter_rows())
    more = f"<p>{_ROWS} of {frame.height:,} rows</p>" if frame.height > _ROWS else ""
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{more}"


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Return labels and values as an HTML table."""
    lines = [
        f'<tr><th style="text-align: left">{escape(label)}</th>'
        f'<td style="text-align: left">{escape(cell(value))}</td></tr>'
        for label, value in rows
    ]
    return f"<table>{''.join(lines)}</table>"
