"""The trials of an experiment that ended without a result: how many of each arm, when, and with which settings.

A trial is *lost* if it diverged, or failed.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from search.analysis.arms.experiment import read_arms
from spaces.experiment import ARM, CONFIGURATION, RANK, SEED

READ_OF_LOST = ("steps", "error")
"""What is read of a trial beside `search.analysis.arms.experiment.READ`."""

_PLACE = (ARM, SEED, CONFIGURATION, RANK)
_LOST = pl.col("state").is_in(["diverged", "failed"])
_ENDED = pl.col("state").is_in(["finished", "diverged", "failed"])


def count_lost(trials: pl.DataFrame) -> pl.DataFrame:
    """Return of each arm the trials that ended, and the steps of those lost.

    Columns: arm, ended, diverged, failed, first, last.
    `trials` as storage gives them. A trial that was stopped early has not ended in this sense.
    """
    return (
        _join_arms(trials)
        .filter(_ENDED)
        .group_by("arm", maintain_order=True)
        .agg(
            ended=pl.len(),
            diverged=(pl.col("state") == "diverged").sum(),
            failed=(pl.col("state") == "failed").sum(),
            first=pl.col("steps").filter(_LOST).min(),
            last=pl.col("steps").filter(_LOST).max(),
        )
    )


def list_lost(trials: pl.DataFrame) -> pl.DataFrame:
    """Return number, arm, seed, state, steps, error, settings: the trials that diverged or failed, by number.

    `settings`: as JSON those that differ among all trials of the experiment.
    """
    found = _join_arms(trials)
    settings = [json.loads(text) for text in found["params"]]
    shown = _find_varied(settings)
    texts = [json.dumps({path: one[path] for path in shown if path in one}) for one in settings]
    lost = found.with_columns(settings=pl.Series(texts, dtype=pl.String)).filter(_LOST)
    return lost.select("number", "arm", "seed", "state", "steps", "error", "settings")


def compare_settings(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of an arm's numbers.

    Columns: arm, setting, lost_least, lost_most, finished_least, finished_most.
    A row for each arm that lost a trial and each setting that differs among its trials and is a number. Null where no
    trial finished.
    """
    rows: list[dict[str, Any]] = []
    for (arm,), own in _join_arms(trials).filter(_ENDED).group_by("arm", maintain_order=True):
        settings = [json.loads(text) for text in own["params"]]
        lost = own.select(_LOST).to_series().to_list()
        if not any(lost):
            continue
        for path in _find_varied(settings):
            ranges = [_range([one.get(path) for one, is_lost in zip(settings, lost, strict=True) if is_lost == wanted])
                      for wanted in (True, False)]  # fmt: skip
            if ranges[0]:
                rows.append(dict(zip(_COLUMNS, (arm, path, *ranges[0], *(ranges[1] or (None, None))), strict=True)))
    return pl.DataFrame(rows, schema=_COLUMNS)


_COLUMNS = {"arm": pl.String(), "setting": pl.String()} | dict.fromkeys(
    ("lost_least", "lost_most", "finished_least", "finished_most"), pl.Float64()
)


def _join_arms(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the trials of arms, by number."""
    return read_arms(trials).join(trials.select("number", "params", *READ_OF_LOST), on="number", maintain_order="left")


def _find_varied(settings: list[dict[str, Any]]) -> list[str]:
    """Return the paths that have more than one value, what says which trial it is aside."""
    paths = dict.fromkeys(path for one in settings for path in one if path not in _PLACE)
    return [path for path in paths if len({json.dumps(one.get(path)) for one in settings}) > 1]


def _range(values: list[Any]) -> tuple[float, float] | None:
    """Return the least and the most of what are numbers; None if none is."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return (min(numbers), max(numbers)) if numbers else None
