"""Frames shown to people: on a terminal what fits, elsewhere aligned text; programs get the formats of graft.files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import polars as pl

CELL = 80
"""Characters of a cell that people see; programs get all."""
TERMINAL_ROWS = 1_000
_GAP = 2


def show(frame: pl.DataFrame, form: str) -> None:
    """Write a frame to stdout as `form`, one of cli.options.FORMATS.

    A table on a terminal has the columns and rows that fit, and says what it leaves out; elsewhere it is aligned text.
    """
    if form != "table":
        _show_bytes(frame, form)
    elif sys.stdout.isatty():
        _show_on_terminal(frame)
    else:
        show_text(align(frame))


def show_json(value: Any) -> None:
    """Write nested JSON values to stdout."""
    from graft.files import cell

    show_text(json.dumps(value, indent=2, ensure_ascii=False, default=cell))


def show_text(text: str) -> None:
    """Write lines to stdout."""
    from graft.files import writing

    with writing("stdout"):
        typer.echo(text)


def align(frame: pl.DataFrame) -> str:
    """The frame as plain text, columns aligned, numbers to the right."""
    grid = _Grid.of(frame)
    return "\n".join(
        (" " * _GAP).join(map(_pad, row, grid.widths, grid.numeric)).rstrip() for row in (grid.names, *grid.rows)
    )


def _show_bytes(frame: pl.DataFrame, form: str) -> None:
    from graft.files import write, writing

    buffer = io.BytesIO()
    write(frame, form, buffer)
    stdout = typer.get_binary_stream("stdout")
    with writing("stdout"):
        stdout.write(buffer.getvalue())
        stdout.flush()


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """A frame as the texts of its cells."""

    names: Sequence[str]
    numeric: Sequence[bool]
    rows: Sequence[Sequence[str]]
    widths: Sequence[int]

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Self:
        from graft.files import cell

        rows = [[_cut(cell(value)) for value in row] for row in frame.iter_rows()]
        names = [cell(name) for name in frame.columns]
        widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
        return cls(names=names, numeric=[dtype.is_numeric() for dtype in frame.dtypes], rows=rows, widths=widths)

    def fitting(self, width: int) -> int:
        """How many of the first columns fit next to each other; at least one."""
        room = width
        for count, needed in enumerate(self.widths):
            room -= needed + _GAP
            if room < -_GAP:
                return max(count, 1)
        return len(self.widths)


def _show_on_terminal(frame: pl.DataFrame) -> None:
    console = Console()
    grid = _Grid.of(frame.head(TERMINAL_ROWS))
    count = grid.fitting(console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name, numeric in list(zip(grid.names, grid.numeric, strict=True))[:count]:
        table.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True, overflow="ellipsis")
    for row in grid.rows:
        table.add_row(*map(Text, row[:count]))
    console.print(table)
    if frame.height > TERMINAL_ROWS:
        typer.echo(f"{TERMINAL_ROWS:,} of {frame.height:,} rows; --format csv writes all", err=True)
    if count < frame.width:
        typer.echo(f"{frame.width - count} more columns: {', '.join(grid.names[count:])}", err=True)


def _pad(text: str, width: int, numeric: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if numeric else text + space


def _cut(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
