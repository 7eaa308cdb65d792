"""The one place that writes a Polars frame: for people as a table, for programs as csv, json, parquet or md."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, Self

import polars as pl
import polars.selectors as cs
import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.options import OptionError

CELL = 80
"""Characters of a cell that people see; programs get all."""
TERMINAL_ROWS = 1_000
_GAP = 2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def show(frame: pl.DataFrame, form: str) -> None:
    """Write a frame to stdout as `form`, one of cli.options.FORMATS.

    A table on a terminal has the columns and rows that fit, and says what it leaves out; elsewhere it is aligned text.
    """
    if form != "table":
        _show_bytes(frame, form)
    elif sys.stdout.isatty():
        _show_on_terminal(frame)
    else:
        show_text(aligned(frame))


def show_json(value: Any) -> None:
    """Write nested JSON values to stdout."""
    show_text(json.dumps(value, indent=2, ensure_ascii=False, default=cell))


def show_text(text: str) -> None:
    """Write lines to stdout."""
    with writing("stdout"):
        typer.echo(text)


@contextmanager
def writing(name: object) -> Generator[None]:
    """Turn what goes wrong while `name` is written into an OptionError; a reader that leaves early is no error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, pl.exceptions.ComputeError) as error:  # the second: a full disk, as write_parquet says it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(f"{name} cannot be written: {reason}") from error


def write(frame: pl.DataFrame, form: str, file: IO[bytes]) -> None:
    """Write a frame to an open file as csv, json (a list of objects), parquet or md; bytes become hexadecimal."""
    _WRITERS[form](frame.with_columns(cs.binary().bin.encode("hex")), file)


def aligned(frame: pl.DataFrame) -> str:
    """The frame as plain text, columns aligned, numbers to the right."""
    grid = _Grid.of(frame)
    return "\n".join(
        (" " * _GAP).join(map(_padded, row, grid.widths, grid.numeric)).rstrip() for row in (grid.names, *grid.rows)
    )


def _show_bytes(frame: pl.DataFrame, form: str) -> None:
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


def _padded(text: str, width: int, numeric: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if numeric else text + space


def _cut(text: str) -> str:
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def cell(value: object) -> str:
    """A value for a person, on one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:.6g}"
        return repr(value) if short == "1" and value != 1.0 else short  # a decay of 1 - 1e-8 is not 1
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return one_line(value.hex() if isinstance(value, bytes) else str(value))


def one_line(text: str) -> str:
    """The text without line breaks and without what steers a terminal; texts in the database come from users."""
    return _CONTROL.sub(" ", text)


def _write_markdown(frame: pl.DataFrame, file: IO[bytes]) -> None:
    rules = ["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes]
    rows = [[_escaped(cell(value)) for value in row] for row in (frame.columns, *frame.iter_rows())]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:])]
    file.write(("\n".join(lines) + "\n").encode())


def _escaped(text: str) -> str:
    return re.sub(r"([\\|<*_`\[])", r"\\\1", text)


def _write_json(frame: pl.DataFrame, file: IO[bytes]) -> None:
    file.write(frame.write_json().encode() + b"\n")


_WRITERS: Mapping[str, Callable[[pl.DataFrame, IO[bytes]], object]] = {
    "csv": lambda frame, file: frame.write_csv(file),
    "json": _write_json,
    "parquet": lambda frame, file: frame.write_parquet(file),
    "md": _write_markdown,
}
