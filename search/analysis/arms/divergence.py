"""The trials of an experiment that ended without a result: how many, when, and their settings.

A trial is *lost* if it diverged, or failed.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from search.analysis.arms.experiment import read_arms
from spaces.experiment import ARM, CONFIGURATION, RANK, SEED

READ_OF_LOST = ("steps", "error")
"""Columns of a trial that are read beside `search.analysis.arms.experiment.READ`."""

_PLACE = (ARM, SEED, CONFIGURATION, RANK)
_LOST = pl.col("state").is_in(["diverged", "failed"])
_ENDED = pl.col("state").is_in(["finished", "diverged", "failed"])


def count_lost(trials: pl.DataFrame) -> pl.DataFrame:
    """Return arm, ended, diverged, failed, first, last: steps of an arm's lost trials.

    `trials` are as storage gives them. A trial that was stopped early does not count as ended.
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
    """Return number, arm, seed, state, steps, error, settings (JSON, if they vary) of the lost."""
    arms = _join_arms(trials)
    settings = [json.loads(text) for text in arms["params"]]
    shown = _find_varied(settings)
    texts = [json.dumps({path: setting[path] for path in shown if path in setting}) for setting in settings]
    lost = arms.with_columns(settings=pl.Series(texts, dtype=pl.String)).filter(_LOST)
    return lost.select("number", "arm", "seed", "state", "steps", "error", "settings")


def compare_settings(trials: pl.DataFrame) -> pl.DataFrame:
    """Return arm, setting, lost_least, lost_most, finished_least, finished_most.

    A row for each arm that lost a trial and each of its settings that differ and are numbers. Null
    if no trial finished.
    """
    rows: list[tuple[Any, ...]] = []
    for (arm,), ended in _join_arms(trials).filter(_ENDED).group_by("arm", maintain_order=True):
        settings = [json.loads(text) for text in ended["params"]]
        lost = ended.select(_LOST).to_series().to_list()
        if not any(lost):
            continue
        for path in _find_varied(settings):
            numbers: dict[bool, list[float]] = {True: [], False: []}
            for setting, is_lost in zip(settings, lost, strict=True):
                value = setting.get(path)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    numbers[is_lost].append(float(value))
            own_lost, others = numbers[True], numbers[False]
            if own_lost:
                ends = min(others, default=None), max(others, default=None)
                rows.append((arm, path, min(own_lost), max(own_lost), *ends))
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


_COLUMNS = {"arm": pl.String(), "setting": pl.String()} | dict.fromkeys(
    ("lost_least", "lost_most", "finished_least", "finished_most"), pl.Float64()
)


def _join_arms(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the trials of arms, by number."""
    columns = trials.select("number", "params", *READ_OF_LOST)
    return read_arms(trials).join(columns, on="number", maintain_order="left")


def _find_varied(settings: list[dict[str, Any]]) -> list[str]:
    """Return the paths that have more than one value, except those that identify a trial."""
    paths = dict.fromkeys(path for setting in settings for path in setting if path not in _PLACE)
    return [path for path in paths if len({json.dumps(setting.get(path)) for setting in settings}) > 1]
