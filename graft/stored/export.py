"""A study's trials and metrics as files for other programs."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import IO, Literal

import polars as pl

from graft.files import write_batches, writing
from graft.stored.params import PARAMS_PREFIX, StoredParams
from graft.stored.trials import align_batches
from storage.frames import Reader
from storage.frames.columns import TRIALS
from storage.frames.study import StudyReader


def metrics_file(output: Path) -> Path:
    """Return `trials.metrics.csv` for `trials.csv`."""
    return output.with_name(f"{output.stem}.metrics{output.suffix}")


def export_study(reader: Reader, study: str, output: Path) -> Mapping[Path, int]:
    """Write the trials to `output`, params as columns, and the metrics beside it; count their rows.

    The format is by the ending: .parquet, .csv or .json. Both tables are read as of one moment,
    some rows at a time.
    """
    rows: dict[Path, int] = {}
    with reader.moment():
        stored = reader.study(study)
        tables = {output: _trial_table(stored), metrics_file(output): stored.metric_batches()}
        # All files are written under other names and then renamed, so that none is half written.
        asides = {path: path.with_name(f".{path.name}.part") for path in tables}
        try:
            for path, batches in tables.items():
                # Batches are closed before the reader, even if the disk is full.
                with writing(path), asides[path].open("wb") as file, closing(batches):
                    rows[path] = write_batches(batches, output.suffix.removeprefix("."), file)
            for path, aside in asides.items():
                with writing(path):
                    aside.replace(path)
        finally:
            for aside in asides.values():
                aside.unlink(missing_ok=True)
    return rows


def write_table(
    reader: Reader,
    study: str,
    table: Literal["trials", "metrics"],
    form: str,
    file: IO[bytes],
    where: str | None = None,
    sort: str | None = None,
) -> int:
    """Write a table of `export_study` as csv, json or parquet to an open file; return its rows.

    `where` and `sort` choose and order the trials, as in `StudyReader.trials`.
    """
    with reader.moment():
        stored = reader.study(study)
        batches = _trial_table(stored, where, sort) if table == "trials" else stored.metric_batches()
        return write_batches(batches, form, file)


def _trial_table(study: StudyReader, where: str | None = None, sort: str | None = None) -> Generator[pl.DataFrame]:
    """Yield the trials of a condition, params as columns, some at a time."""
    # Trials may draw different params: the table has the columns of all of them.
    params = StoredParams(study)
    batches = (params.unpack(batch).clear() for batch in study.trial_batches(columns=("number", "params")))
    columns = align_batches(batches).schema
    known = {name: dtype for name, dtype in TRIALS.items() if name != "params"}
    drawn = {name: dtype for name, dtype in columns.items() if name.startswith(PARAMS_PREFIX)}
    schema = pl.Schema(known | drawn)
    for batch in study.trial_batches(where, sort):
        yield align_batches([schema.to_frame(), params.unpack(batch)])
