"""The stored trials of a study, one by one and as frames."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import polars as pl

from graft.stored.params import PARAMS_PREFIX, StoredParams, unpack_params
from search.analysis.study.pareto import pareto_front
from spaces.errors import StudyError
from storage.control.stored_trials import check_parent
from storage.frames import Reader
from storage.frames.columns import POINTS, TRIALS
from storage.frames.study import StudyReader

StudyTable = Literal["trials", "front", "metrics", "architectures"]
"""A frame of a study that people and programs read; see `read_table`."""
LISTED = tuple(name for name in TRIALS if name not in ("id", "study_id", "fence", "draws", "config"))
"""Columns of a list of trials; `params` becomes one column per path."""

_OF_PARAMS = ("number", "params")
_LOOKED_AT = 100
"""Trials that are read to learn which params differ; a shown selection may have one value."""


def read_trial(reader: Reader, study: str, number: int) -> tuple[dict[str, Any], pl.DataFrame]:
    """Return a trial's row, JSON as values, and its metrics; raises StudyError without a trial."""
    stored = reader.study(study)
    [row] = StoredParams(stored).decode(_find_trial(stored, number))
    return row, read_metrics(reader, row["id"])


def read_lineage(reader: Reader, study: str, number: int) -> list[dict[str, Any]]:
    """Return the rows of a trial and of the trials whose states it took over, the oldest first."""
    stored = reader.study(study)
    rows = [_find_trial(stored, number).row(0, named=True)]
    while (parent := rows[-1]["parent"]) is not None:
        check_parent(rows[-1]["number"], parent)
        rows.append(_find_trial(stored, parent).row(0, named=True))
    return rows[::-1]


def _find_trial(stored: StudyReader, number: int) -> pl.DataFrame:
    """Return the row of a trial; raises StudyError if there is none."""
    rows = stored.trials(where=f"number = {number}")
    if rows.is_empty():
        highest = stored.trials(sort="number DESC", top=1, columns=("number",))["number"].max()
        there = "it has none yet" if highest is None else f"the highest is {highest}"
        raise StudyError(f"study {stored.row['name']!r} has no trial {number}; {there}")
    return rows


def read_metrics(reader: Reader, trial: int) -> pl.DataFrame:
    """Return a trial's kept metrics, by its id, in the order of steps; columns POINTS."""
    columns = ", ".join(POINTS)
    return reader.query(f"SELECT {columns} FROM metrics WHERE trial_id = {trial} ORDER BY {columns}")


def summarise_metrics(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the lowest, highest and last value, with their steps, of each metric."""
    value, step = pl.col("value"), pl.col("step")
    return metrics.group_by("name", "variant", "condition", maintain_order=True).agg(
        validations=pl.len(),
        lowest=value.min(),
        lowest_step=step.get(value.arg_min()),
        highest=value.max(),
        highest_step=step.get(value.arg_max()),
        last=value.last(),
        last_step=step.last(),
    )


def read_table(
    reader: Reader,
    study: str,
    table: StudyTable,
    where: str | None = None,
    sort: str | None = None,
    top: int | None = None,
    name: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Return a table of a study; `where`, `sort` and `top` choose trials, and `name` metrics."""
    match table:
        case "trials":
            return list_trials(reader, study, where, sort, top)
        case "front":
            return list_front(reader, study)
        case "metrics":
            return reader.study(study).metrics(name)
        case "architectures":
            return reader.study(study).architectures.read()


def list_trials(reader: Reader, study: str, where: str | None, sort: str | None, top: int | None) -> pl.DataFrame:
    """Return the columns LISTED of `StudyReader.trials`, with a typed column for each of `params`.

    Trials are unpacked in batches, since their JSON is large. Raises StudyError for a `top` below
    1, and for the best trials of a transfer some of whose tasks minimize and others maximize.
    """
    if top is not None and top < 1:
        raise StudyError(f"top: {top} must be at least 1")
    stored = reader.study(study)
    if top is not None and sort is None:
        stored.check_ranking()
    return align_batches(map(StoredParams(stored).unpack, stored.trial_batches(where, sort, top, LISTED)))


def find_varying_params(stored: StudyReader) -> set[str]:
    """Return the columns of params that differ among about _LOOKED_AT of the study's trials.

    Half of them are the first ones, the others are spread over the rest up to the last one: arms
    have their seeds one after the other, and searches of several tasks take turns.
    """
    count, half = stored.count_numbers(), _LOOKED_AT // 2
    spread = ((count - 1) * part // half for part in range(1, half + 1))
    numbers = {*range(count)} if count <= _LOOKED_AT else {*range(half), *spread}
    listed = ", ".join(map(str, sorted(numbers))) or "NULL"
    return list_varying(StoredParams(stored).unpack(stored.trials(f"number IN ({listed})", columns=_OF_PARAMS)))


def list_varying(trials: pl.DataFrame) -> set[str]:
    """Return the columns of params that differ among trials."""
    return {name for name in trials.columns if name.startswith(PARAMS_PREFIX) and trials[name].n_unique() > 1}


def list_front(reader: Reader, study: str) -> pl.DataFrame:
    """Return the Pareto front's trials, the best first; raises StudyError for one objective."""
    stored = reader.study(study)
    row = stored.row
    if not row["second_objective"]:
        raise StudyError(f"study {study!r} has one objective, so that one trial is its best and there is no front")
    front = read_front(stored).select("number")
    numbers = ", ".join(map(str, front["number"])) or "NULL"
    listed = list_trials(reader, study, f"number IN ({numbers})", None, None)
    return front.join(listed, on="number", maintain_order="left")


def read_front(stored: StudyReader) -> pl.DataFrame:
    """Return number and both objectives of the Pareto front's trials, the best objective first."""
    row = stored.row
    maximize = row["direction"] == "maximize", str(row["second_objective"]).startswith("maximize")
    return pareto_front(stored.contenders(), maximize)


def pick_params(batches: Iterable[pl.DataFrame], pattern: str) -> pl.DataFrame:
    """Return number, and a column for each of `params` whose path matches a regular expression.

    The batches have number and params; a missing param is null.
    """
    wanted = re.compile(pattern)
    parts = [pl.DataFrame(schema={"number": pl.Int64()})]
    for batch in batches:
        columns = unpack_params(batch.drop_nulls("params"))
        paths = [name.removeprefix(PARAMS_PREFIX) for name in columns.columns[1:]]
        chosen = [pl.col(PARAMS_PREFIX + path).alias(path) for path in paths if wanted.fullmatch(path)]
        parts.append(columns.select("number", *chosen))
    return align_batches(parts)


def align_batches(batches: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Join frames whose columns and types may differ; a missing column is null."""
    return pl.concat(list(batches), how="diagonal_relaxed")
