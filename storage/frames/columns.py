"""The columns of the frames that are read, and the frames made from rows of a database's driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
from sqlalchemy import JSON, Boolean, DateTime, Double, Integer, Table

from storage.schema import changes, claim_events, fingerprints, reveals, sources, studies, trial_notes, trials, workers

Schema = Mapping[str, pl.DataType]

_TIME = pl.Datetime("us", "UTC")


_KINDS = {DateTime: _TIME, Boolean: pl.Boolean(), Double: pl.Float64(), Integer: pl.Int64()}
"""Type of a column -> that of its values in a frame; every other type, JSON too, is text."""


def _schema(table: Table) -> Schema:
    schema: dict[str, pl.DataType] = {}
    for column in table.columns:
        kinds = (kind for sql, kind in _KINDS.items() if isinstance(column.type, sql))
        schema[column.name] = next(kinds, pl.String())
    return schema


STUDIES: Schema = {name: kind for name, kind in _schema(studies).items() if name != "data"}
"""All columns but `data`, which names each file of a folder (`StudyReader.data`)."""
TRIALS: Schema = _schema(trials)
JSON_COLUMNS = tuple(column.name for column in trials.columns if isinstance(column.type, JSON))
WORKERS: Schema = _schema(workers)
REQUIRED = {table.name: frozenset(c.name for c in table.columns if not c.nullable) for table in (trials, workers)}
"""Table -> its columns that are never null."""
SOURCES: Schema = _schema(sources)
"""`plugins` is a JSON text."""
CHANGES: Schema = _schema(changes)
"""`differences` is a JSON text."""
CLAIM_EVENTS: Schema = _schema(claim_events)
"""`claims` is a JSON text."""
REVEALS: Schema = _schema(reveals)
_NOTES = _schema(trial_notes)
TRIAL_NOTES: Schema = {name: kind for name, kind in _NOTES.items() if name != "study_id"}
FINGERPRINTS: Schema = _schema(fingerprints)
"""`sources` is a JSON text."""
POINTS: Schema = {
    "step": pl.Int64(),
    **dict.fromkeys(("name", "variant", "condition"), pl.String()),
    "value": pl.Float64(),
}
"""The metrics of one trial."""
METRICS: Schema = {"number": pl.Int64(), **POINTS}
ARCHITECTURES: Schema = {
    **dict.fromkeys(("id", "number"), pl.Int64()),
    **dict.fromkeys(("task", "component"), pl.String()),
    **dict.fromkeys(("low", "high"), pl.Float64()),
    "knots": pl.List(pl.Float64()),
    "objective": pl.Float64(),
}


def transpose(rows: Sequence[tuple[Any, ...]], width: int) -> list[Sequence[Any]]:
    """Return the columns of rows of `width` values."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def build_frame(schema: Schema, columns: Sequence[Sequence[Any]]) -> pl.DataFrame:
    """Return a frame of the driver's values.

    SQLite has times as text, truth as 0 and 1; PostgreSQL has exact Decimals.
    """
    series: list[pl.Series] = []
    for (name, dtype), values in zip(schema.items(), columns, strict=True):
        kinds = set(map(type, values)) - {type(None)}
        if dtype == _TIME and kinds == {str}:
            texts = pl.Series(name, values, pl.String())
            times = texts.str.to_datetime("%Y-%m-%d %H:%M:%S%.6f", time_unit="us", time_zone="UTC")
            series.append(times)
        elif dtype == pl.Boolean() and kinds == {int}:
            series.append(pl.Series(name, values, pl.Int64()).cast(dtype))
        elif dtype == pl.Float64() and kinds - {float}:
            numbers = [None if value is None else float(value) for value in values]
            series.append(pl.Series(name, numbers, dtype))
        elif dtype == pl.String() and kinds - {str}:
            shown = [None if value is None else str(value) for value in values]
            series.append(pl.Series(name, shown, dtype))
        else:
            series.append(pl.Series(name, values, dtype))
    return pl.DataFrame(series)


def infer_type(name: str, values: Sequence[Any]) -> pl.DataType:
    """Return the type that all values of a column fit; without any, that of its namesake."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return {**TRIALS, **METRICS}.get(name, pl.String())
    if kinds == {int}:
        return pl.Int64()
    if kinds <= {int, float}:
        return pl.Float64()
    return pl.Binary() if kinds == {bytes} else pl.String()
