"""Made-up studies of the set complement task, as storage gives them: invented learning curves in the real form."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from graft.report.data import StudyData
from graft.report.study import reserved_metrics
from spaces.records import State

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DROPOUTS = ("model.embedding_dropout", "model.residual_dropout")


def study_row(name: str = "set-complement", objective: str = "tvd/bema", **changes: Any) -> dict[str, Any]:
    row = {
        "id": 1,
        "name": name,
        "objective": objective,
        "direction": "minimize",
        "state": "finished",
        "trials": 1000,
        "created_at": STARTED,
    }
    return row | changes


def trial_row(number: int, group: int, state: State, objective: float | None, **changes: Any) -> dict[str, Any]:
    """One trial; `params` and `config` are given as dictionaries."""
    row = {
        "number": number,
        "group_number": group,
        "state": state,
        "task": "set_complement",
        "model": "minimal",
        "scorer": "softmax",
        "seed": number,
        "steps": 100,
        "objective": objective,
        "worker": "worker-1",
        "error": None,
        "created_at": STARTED,
        "started_at": STARTED,
        "finished_at": STARTED,
        "params": {},
        "config": {},
    } | changes
    return row | {"params": json.dumps(row["params"]), "config": json.dumps(row["config"])}


TRIALS_SCHEMA: dict[str, Any] = {
    "number": pl.Int64,
    "group_number": pl.Int64,
    "state": pl.String,
    "task": pl.String,
    "model": pl.String,
    "scorer": pl.String,
    "seed": pl.Int64,
    "steps": pl.Int64,
    "objective": pl.Float64,
    "worker": pl.String,
    "error": pl.String,
    "created_at": pl.Datetime("us", "UTC"),
    "started_at": pl.Datetime("us", "UTC"),
    "finished_at": pl.Datetime("us", "UTC"),
    "params": pl.String,
    "config": pl.String,
}
METRICS_SCHEMA: dict[str, Any] = {
    "number": pl.Int64,
    "step": pl.Int64,
    "name": pl.String,
    "variant": pl.String,
    "condition": pl.String,
    "value": pl.Float64,
}


def trials_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=TRIALS_SCHEMA)


def metrics_frame(rows: list[tuple[int, int, str, str, str, float | None]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row")


def study_data(row: dict[str, Any], trials: pl.DataFrame, metrics: pl.DataFrame, lanes: Any = (0, 0)) -> StudyData:
    """Return a study of these frames, as its report reads it from a database."""
    return StudyData(
        study=row,
        load_trials=lambda: trials,
        load_metrics=lambda: [metrics],
        load_step_counts=lambda: lanes,
        reserved=reserved_metrics(),
    )


def set_complement_study(
    groups: int = 4,
    members: int = 250,
    validations: int = 10,
    variants: tuple[str, ...] = ("raw", "bema"),
    names: tuple[str, ...] = ("tvd", "itp", "itr"),
    seed: int = 0,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Trials and metrics as Table 1 of paper 003 draws them; BEMA helps, and dropout helps wide models over a gap."""
    random = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    levels = np.empty(groups * members)
    for group in range(groups):
        length = 1 + int(2 ** random.uniform(0, 4))
        gap = int(2 ** ((group + random.uniform()) / groups * 4)) - 1  # stratified, so that four groups differ
        length, vocabulary = max(length, 2), max(length, 2) + 1 + gap
        width = int((vocabulary - 1) * random.uniform(1, 4))
        value_width = int(random.uniform(vocabulary - 1, width))
        sizes = {"width": width, "key_width": int(random.uniform(1, width)), "value_width": value_width}
        task = {"length": length, "vocabulary": vocabulary}
        for number in range(group * members, (group + 1) * members):
            rates = np.maximum(random.uniform(-0.5, 0.5, 2), 0)
            rate = 10 ** random.uniform(-5, -1)
            wanted = 0.3 * min(gap, 6) / 6 * (width / (vocabulary - 1) - 1) / 3
            misfit = abs(np.log10(rate) + 2.5) + 5 * abs(rates[0] - wanted) + 2 * abs(rates[1] - wanted / 2)
            levels[number] = 0.6 * (1 + gap) ** 0.5 / 4 * 10 ** (-2.5 + 0.8 * misfit + 0.3 * random.normal())
            params: dict[str, Any] = {f"task.{name}": value for name, value in task.items()}
            params |= {f"model.{name}": value for name, value in sizes.items()}
            params |= dict(zip(DROPOUTS, rates.tolist(), strict=True))
            params |= {
                "task.generalisation_gap": gap,
                "model.norm_epsilon": 10 ** random.uniform(-10, -4),
                "optimizer.learning_rate": rate,
                "optimizer.weight_decay": 10 ** random.uniform(-6, 0),
                "optimizer.warmup": int(10 ** random.uniform(-2, 6)),
                "averaging.rho": 10 ** random.uniform(0, 10),
                "averaging.kappa": random.uniform(),
                "averaging.eta": random.uniform(),
            }
            config = {
                "task": {"name": "set_complement", **task},
                "model": {"name": "minimal", **sizes, "scorer": {"name": "softmax"}, "embedding_dropout": rates[0]},
            }
            state: State = "diverged" if rate > 0.08 else "pruned" if misfit > 3.5 else "finished"
            rows.append(trial_row(number, group, state, None, params=params, config=config))
    metrics = _metrics(np.minimum(levels, 0.9), validations, variants, names, random)
    lowest = metrics.filter(pl.col("name") == names[0], pl.col("variant") == variants[-1]).group_by("number")
    objective = lowest.agg(pl.col("value").min().alias("best"))
    trials = trials_frame(rows).join(objective, on="number", how="left", maintain_order="left")
    achieved = pl.when(pl.col("state") != "diverged").then("best")
    return trials.with_columns(objective=achieved).drop("best"), metrics


def _metrics(
    levels: np.ndarray, validations: int, variants: tuple[str, ...], names: tuple[str, ...], random: np.random.Generator
) -> pl.DataFrame:
    """All trials' validations, each approaching its level, in the order of storage: number, step, name, variant."""
    times = np.linspace(0, 1, validations + 1)[1:]
    easier = {"tvd": 1.0, "itp": 0.15, "itr": 1e-4, "loss": 3.0}
    shape = (len(levels), validations, len(names), len(variants))
    values = np.empty(shape)
    for row, name in enumerate(names):
        for column, variant in enumerate(variants):
            gain = 1.0 if variant == "raw" else 10 ** random.normal(-0.12, 0.12, (len(levels), 1))
            fall = levels[:, None] + (1 - levels[:, None]) * np.exp(-8 * times)
            noise = 10 ** random.normal(0, 0.05, (len(levels), validations))
            values[:, :, row, column] = np.minimum(fall * noise * gain * easier[name], 3.0)
    if "itr" in names:
        itr = values[:, :, names.index("itr")]
        values[:, :, names.index("itr")] = np.where(itr < 2e-5, 0.0, itr)
    number, step, name, variant = (index.ravel() for index in np.indices(shape))
    return pl.DataFrame(
        {
            "number": number,
            "step": (step + 1) * 10_000,
            "name": pl.Series(names).gather(pl.Series(name)),
            "variant": pl.Series(variants).gather(pl.Series(variant)),
            "condition": pl.repeat("", number.size, eager=True),
            "value": values.ravel(),
        },
        schema_overrides=METRICS_SCHEMA,
    )
