"""Frames for people, on a terminal or as aligned text, and for programs (`graft.files`)."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
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
"""Characters that people see of a cell; programs get all."""
TERMINAL_ROWS = 1_000
_GAP = 2
_SLICE = 10_000
"""Rows that are made texts at once."""


def show(frame: pl.DataFrame, form: str) -> None:
    """Write a frame to stdout as `form`, one of cli.options.FORMATS.

    A table on a terminal has the columns and rows that fit; elsewhere it is aligned text.
    """
    from graft.files import write, writing

    if form == "table" and sys.stdout.isatty():
        _show_on_terminal(frame)
        return
    with writing("stdout"):
        if form == "table":
            stdout = sys.stdout
            for line in _align(frame):
                stdout.write(line + "\n")
            stdout.flush()
        else:
            binary = typer.get_binary_stream("stdout")
            write(frame, form, binary)
            binary.flush()


def show_json(value: Any) -> None:
    """Write nested JSON values to stdout."""
    show_text(json_text(value))


def json_text(value: Any) -> str:
    """Return nested values as JSON text."""
    from graft.files import cell

    return json.dumps(value, indent=2, ensure_ascii=False, default=cell)


def show_text(text: str) -> None:
    """Write lines to stdout."""
    from graft.files import writing

    with writing("stdout"):
        typer.echo(text)


def align(frame: pl.DataFrame) -> str:
    """Return the frame as plain text, columns aligned, numbers to the right."""
    return "\n".join(_align(frame))


def _align(frame: pl.DataFrame) -> Iterator[str]:
    """Yield the lines of a frame, the names first."""
    parts = [_Grid.of(part) for part in frame.iter_slices(_SLICE)] or [_Grid.of(frame)]
    widths = [max(column) for column in zip(*(part.widths for part in parts), strict=True)]
    first = parts[0]
    for row in itertools.chain([first.names], *(part.texts.iter_rows() for part in parts)):
        cells: list[str] = []
        for text, width, numeric in zip(row, widths, first.numeric, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if numeric else text + space)
        yield (" " * _GAP).join(cells).rstrip()


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """A frame as the texts of its cells."""

    names: Sequence[str]
    numeric: Sequence[bool]
    texts: pl.DataFrame
    """The texts of the cells; as Python strings they would take ten times the memory."""
    widths: Sequence[int]

    @classmethod
    def of(cls, frame: pl.DataFrame) -> Self:
        import polars as pl

        from graft.files import cell

        def write(value: Any) -> str:
            text = cell(value)
            return text if len(text) <= CELL else text[: CELL - 1] + "…"

        columns = [[write(value) for value in frame[name]] for name in frame.columns]
        names = [cell(name) for name in frame.columns]
        widths = [max(map(cell_len, (name, *column))) for name, column in zip(names, columns, strict=True)]
        texts = pl.DataFrame([pl.Series(str(at), column, pl.String()) for at, column in enumerate(columns)])
        return cls(names=names, numeric=[dtype.is_numeric() for dtype in frame.dtypes], texts=texts, widths=widths)

    def fitting(self, width: int) -> int:
        """Return how many of the first columns fit next to each other; at least one."""
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
    for row in grid.texts.iter_rows():
        table.add_row(*map(Text, row[:count]))
    console.print(table)
    if frame.height > TERMINAL_ROWS:
        typer.echo(f"{TERMINAL_ROWS:,} of {frame.height:,} rows; --format csv writes all", err=True)
    if count < frame.width:
        typer.echo(f"{frame.width - count} more columns: {', '.join(grid.names[count:])}", err=True)
