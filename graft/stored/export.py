"""A study's trials and metrics as files for other programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import polars as pl

from graft.files import write_batches, writing
from graft.stored.params import Renewal
from graft.stored.trials import PARAMS_PREFIX, align_batches, unpack_params
from storage.frames import TRIALS, Reader


def metrics_file(output: Path) -> Path:
    """`trials.metrics.csv` beside `trials.csv`."""
    return output.with_name(f"{output.stem}.metrics{output.suffix}")


def export_study(reader: Reader, study: str, output: Path) -> Mapping[Path, int]:
    """Write the trials to `output`, params as columns, and the metrics beside it; rows of each file.

    The ending, .parquet, .csv or .json, says in which format. Both are read as of one moment, some rows at a time.
    """
    with reader.moment():
        schema = _schema_of(reader, study)
        trials = map(unpack_params, map(Renewal(reader, study), reader.trial_batches(study)))
        batches = {
            output: _conform(trials, schema),
            metrics_file(output): reader.metric_batches(study),
        }
        return _write_files(batches, output.suffix.removeprefix("."))


def _schema_of(reader: Reader, study: str) -> pl.Schema:
    """The columns of all trials and their types: what one of them draws, another may not."""
    batches = (unpack_params(batch).clear() for batch in reader.trial_batches(study, columns=("params",)))
    found = align_batches(batches).schema
    known = {name: dtype for name, dtype in TRIALS.items() if name != "params"}
    return pl.Schema({**known, **{name: dtype for name, dtype in found.items() if name.startswith(PARAMS_PREFIX)}})


def _conform(batches: Iterable[pl.DataFrame], schema: pl.Schema) -> Iterator[pl.DataFrame]:
    for batch in batches:
        yield align_batches([schema.to_frame(), batch])


def _write_files(batches: Mapping[Path, Iterable[pl.DataFrame]], form: str) -> dict[Path, int]:
    """Write all files aside and rename them only then, so that no file is ever half written; rows of each."""
    asides = {path: path.with_name(f".{path.name}.part") for path in batches}
    rows: dict[Path, int] = {}
    try:
        for path, found in batches.items():
            with writing(path), asides[path].open("wb") as file:
                rows[path] = write_batches(found, form, file)
        for path, aside in asides.items():
            with writing(path):
                aside.replace(path)
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
    return rows
