"""Frames written as csv, json, parquet or md, and the errors of files that cannot be written."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING

from spaces.errors import GraftError
from spaces.messages import one_line

# Polars takes a sixth of a second to import, and commands without a frame write, too.
if TYPE_CHECKING:
    import polars as pl

SLICE = 20_000
"""Rows that are written at a time."""
_FORMULA = r"^[=+\-@\t\r]"
_MARKUP = re.compile(r"[\\|<*_`\[]")
_OF_RUST = re.compile(r" \(os error \d+\)$")


class OutputError(GraftError):
    """A file cannot be written, or its name does not say in which format."""


def check_ending(path: Path, endings: Collection[str]) -> None:
    """Raise OutputError if the path ends in none of these."""
    if path.suffix not in endings:
        raise OutputError(f"{path}: the ending must be one of {', '.join(endings)}")


@contextmanager
def writing(name: object) -> Generator[None]:
    """Turn errors of writing `name` into an OutputError, and remove a new file that is incomplete.

    BrokenPipeError, of a reader that left early, passes.
    """
    new = name if isinstance(name, Path) and not name.exists() else None
    try:
        yield
    except BrokenPipeError:
        raise
    except _failures() as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        if os.strerror(errno.EPIPE) in str(reason):  # Polars' own words, without a number
            raise BrokenPipeError(errno.EPIPE, str(reason)) from error
        if new and new.is_file():
            new.unlink()
        raise OutputError(f"{name} cannot be written: {_OF_RUST.sub('', str(reason))}") from error


def _failures() -> tuple[type[Exception], ...]:
    """Return the errors of a file that cannot be written; write_parquet raises one of Polars'."""
    polars = sys.modules.get("polars")
    return (OSError, polars.exceptions.ComputeError) if polars else (OSError,)


def write(frame: pl.DataFrame, form: str, file: IO[bytes]) -> None:
    """Write a frame as csv, json (a list of objects), parquet or md, with bytes in hexadecimal."""
    write_batches(frame.iter_slices(SLICE) if frame.height else [frame], form, file)


def write_rows(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame to a file in the form of its ending."""
    with path.open("wb") as file:
        write(frame, path.suffix.removeprefix("."), file)


def write_batches(batches: Iterable[pl.DataFrame], form: str, file: IO[bytes]) -> int:
    """Write at least one frame of one schema as one file, in a form of `write`; return the rows.

    Only one frame is in memory at a time, and for parquet a row group.
    """
    import polars.selectors as cs

    rows = 0

    def plain() -> Iterator[pl.DataFrame]:
        nonlocal rows
        for batch in batches:
            rows += batch.height
            yield batch.with_columns(cs.binary().bin.encode("hex"))

    _WRITERS[form](plain(), file)
    return rows


def cell(value: object) -> str:
    """Return a value for a person, on one line."""
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


def _write_csv(batches: Iterator[pl.DataFrame], file: IO[bytes]) -> None:
    """Write csv, with a ' before a text that is a formula (OWASP, "CSV Injection")."""
    import polars as pl
    import polars.selectors as cs

    text = cs.string()
    harmless = pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text).name.keep()
    for index, batch in enumerate(batches):
        batch.with_columns(harmless).write_csv(file, include_header=not index)


def _write_markdown(batches: Iterator[pl.DataFrame], file: IO[bytes]) -> None:
    for index, batch in enumerate(batches):
        rules = ["---:" if dtype.is_numeric() else "---" for dtype in batch.dtypes]
        rows = [[_MARKUP.sub(r"\\\g<0>", cell(value)) for value in row] for row in (batch.columns, *batch.iter_rows())]
        head = [rows[0], rules] if not index else []
        file.writelines(f"| {' | '.join(row)} |\n".encode() for row in (*head, *rows[1:]))


def _write_json(batches: Iterator[pl.DataFrame], file: IO[bytes]) -> None:
    separator = b"["
    for batch in batches:
        if batch.height:
            file.write(separator + batch.write_json().encode()[1:-1])
            separator = b","
    file.write(b"]\n" if separator == b"," else b"[]\n")


def _write_parquet(batches: Iterator[pl.DataFrame], file: IO[bytes]) -> None:
    """Write parquet by Polars' streaming engine, which asks for one batch after another."""
    from polars.io.plugins import register_io_source

    first = next(batches)

    def read(*_: object) -> Iterator[pl.DataFrame]:
        yield first
        yield from batches

    register_io_source(read, schema=first.schema).sink_parquet(file, row_group_size=SLICE, maintain_order=True)


_WRITERS: Mapping[str, Callable[[Iterator[pl.DataFrame], IO[bytes]], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
    "md": _write_markdown,
}
