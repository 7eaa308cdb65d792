"""Frames written for programs, as csv, json, parquet or md, and what is said when a file cannot be written."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import IO

import polars as pl
import polars.selectors as cs

from spaces.errors import GraftError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_FORMULA = r"^[=+\-@\t\r]"


class OutputError(GraftError):
    """A file cannot be written, or its name does not say in which format."""


@contextmanager
def writing(name: object) -> Generator[None]:
    """Turn what goes wrong while `name` is written into an OutputError; a reader that leaves early is no error."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, pl.exceptions.ComputeError) as error:  # the second: a full disk, as write_parquet says it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(f"{name} cannot be written: {reason}") from error


def write(frame: pl.DataFrame, form: str, file: IO[bytes]) -> None:
    """Write a frame to an open file as csv, json (a list of objects), parquet or md; bytes become hexadecimal."""
    _WRITERS[form](frame.with_columns(cs.binary().bin.encode("hex")), file)


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


def _write_csv(frame: pl.DataFrame, file: IO[bytes]) -> None:
    """As csv; a text that a spreadsheet would take for a formula gets a ' before it, as the spreadsheets themselves do.

    Source: OWASP, "CSV Injection".
    """
    text = cs.string()
    frame.with_columns(pl.when(text.str.contains(_FORMULA)).then("'" + text).otherwise(text).name.keep()).write_csv(
        file
    )


def _write_markdown(frame: pl.DataFrame, file: IO[bytes]) -> None:
    rules = ["---:" if dtype.is_numeric() else "---" for dtype in frame.dtypes]
    rows = [[_escape(cell(value)) for value in row] for row in (frame.columns, *frame.iter_rows())]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rules, *rows[1:])]
    file.write(("\n".join(lines) + "\n").encode())


def _escape(text: str) -> str:
    return re.sub(r"([\\|<*_`\[])", r"\\\1", text)


def _write_json(frame: pl.DataFrame, file: IO[bytes]) -> None:
    file.write(frame.write_json().encode() + b"\n")


_WRITERS: Mapping[str, Callable[[pl.DataFrame, IO[bytes]], object]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": lambda frame, file: frame.write_parquet(file),
    "md": _write_markdown,
}
