"""A model fitted to a task's trials that predicts the metrics of training a new trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from search.samplers._features import Encoder, Features, Floats, fit_forest, to_quantiles
from spaces.records import Metric

TREES = 100
_NOT_FEATURES = {"task", "slice", "number", "seed", "state", "steps", "numerics", "step_kind", "space"}
"""Columns of a table of trials (`benchmarks.table`) that are no settings."""

Key = tuple[int, str, str, str]
"""Step, name, variant and condition of a metric."""


def features_of(trials: pl.DataFrame) -> list[Features]:
    """Return the settings of each trial by path; a table has columns for those that differ."""
    kept = [name for name in trials.columns if name not in _NOT_FEATURES]
    names = [name for name in kept if not name.startswith("task.")]
    return [
        {name: value for name, value in row.items() if value is not None}
        for row in trials.select(names).iter_rows(named=True)
    ]


@dataclass(frozen=True, kw_only=True)
class TaskModel:
    """Extremely randomised trees over the configurations of one task, for all metrics and steps.

    Targets are quantiles of each metric at each step among the trials of the table, so that scales
    do not matter. A prediction is a mean of quantiles, converted back to the metric's scale. It has
    no noise: two trials of one configuration get the same answer. A trial that diverged counts as
    the worst value seen.
    """

    encoder: Encoder
    forest: Any
    keys: tuple[Key, ...]
    sorted_values: Floats
    """The values of each key's metric in ascending order, [trials, keys]."""

    @classmethod
    def fit(cls, trials: pl.DataFrame, metrics: pl.DataFrame, lower: Mapping[str, bool], seed: int = 0) -> TaskModel:
        """Return a model of one task; `lower`: metric -> True, the default, if less is better."""
        keys, values = _to_matrix(trials, metrics, lower)
        features = features_of(trials)
        encoder = Encoder.of(features)
        diverged = (trials["state"] == "diverged").to_numpy().astype(np.float64)
        targets = np.column_stack([to_quantiles(values), diverged])
        forest = fit_forest(encoder.encode(features), targets, TREES, seed)
        return cls(encoder=encoder, forest=forest, keys=keys, sorted_values=np.sort(values, axis=0))

    def predict(self, rows: Sequence[Features]) -> tuple[Floats, Floats]:
        """Return metrics, [rows, keys], and probabilities of divergence, [rows] in [0, 1]."""
        predicted = self.forest.predict(self.encoder.encode(rows))
        count = len(self.sorted_values)
        quantiles = (np.arange(count) + 0.5) / count  # of the sorted values
        values = [np.interp(predicted[:, at], quantiles, self.sorted_values[:, at]) for at in range(len(self.keys))]
        return np.stack(values, axis=1), predicted[:, -1]

    def answer(self, rows: Sequence[Features]) -> list[tuple[Mapping[int, list[Metric]], bool]]:
        """Return each row's step -> metrics, and whether it diverges (at its first validation)."""
        values, diverged = self.predict(rows)
        answers: list[tuple[Mapping[int, list[Metric]], bool]] = []
        for row, share in zip(values.tolist(), diverged, strict=True):
            curve: dict[int, list[Metric]] = {}
            for (step, name, variant, condition), value in zip(self.keys, row, strict=True):
                curve.setdefault(step, []).append(Metric(name, variant, condition, value))
            answers.append((curve, bool(share > 0.5)))
        return answers


def _to_matrix(
    trials: pl.DataFrame, metrics: pl.DataFrame, lower: Mapping[str, bool]
) -> tuple[tuple[Key, ...], Floats]:
    """Return keys and values [trials, keys]; the worst of a metric stands for a missing one."""
    key_columns, trial_columns = ["step", "name", "variant", "condition"], ["slice", "number"]
    keys = metrics.select(key_columns).unique().sort(key_columns)
    cells = metrics.join(keys.with_row_index("column"), on=key_columns).join(
        trials.select(trial_columns).with_row_index("row"), on=trial_columns
    )
    values = np.full((trials.height, keys.height), np.nan)
    values[cells["row"].to_numpy(), cells["column"].to_numpy()] = cells["value"].to_numpy()
    values[~np.isfinite(values)] = np.nan
    for column, name in enumerate(keys["name"]):
        worst = np.nanmax(values[:, column]) if lower.get(name, True) else np.nanmin(values[:, column])
        values[np.isnan(values[:, column]), column] = worst
    return tuple(keys.iter_rows()), values


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How well a task's model predicts the last objective of trials that it was not fitted to."""

    trials: int
    rank_correlation: float
    error: float
    """The median absolute error, in the metric's unit."""


def assess(trials: pl.DataFrame, metrics: pl.DataFrame, lower: Mapping[str, bool], metric: str, folds: int = 5) -> Fit:
    """Return how well each fold's last `metric`, variant raw, is predicted from the other folds."""
    keys, values = _to_matrix(trials, metrics, lower)
    wanted = (metric, "raw", "")
    last = max(step for step, *measured in keys if tuple(measured) == wanted)
    column = keys.index((last, metric, "raw", ""))
    fold = np.random.default_rng(0).permutation(trials.height) % folds
    predicted = np.empty(trials.height)
    for number in range(folds):
        rest, held = trials.filter(fold != number), trials.filter(fold == number)
        model = TaskModel.fit(rest, metrics.join(rest, on=["slice", "number"], how="semi"), lower)
        predictions, _ = model.predict(features_of(held))
        predicted[fold == number] = predictions[:, model.keys.index(keys[column])]
    truth = values[:, column]
    return Fit(
        trials=trials.height,
        rank_correlation=float(np.corrcoef(to_quantiles(predicted), to_quantiles(truth))[0, 1]),
        error=float(np.median(np.abs(predicted - truth))),
    )
