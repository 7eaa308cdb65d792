"""The trials of a study as the results that a compatibility matrix is made from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import polars as pl

from search.analysis.transfer.compatibility_matrix import TransferError
from spaces.settings import Direction, list_leaves

COLUMNS = ("group_number", "model", "scorer", "seed", "task")
"""Columns of a trial that serve as a path."""
READ = ("number", *COLUMNS, "objective", "params", "config")

_PATH = re.compile(r"\w+(\.\w+)*")
_LOOKED_AT = 1000
"""Trials that are compared for an error message."""


def target_of(trials: pl.DataFrame) -> str:
    """Return the path of a trial's target: the name that a transfer gives it, or the task's own."""
    named = _looked_up(trials, "transfer.target")
    return "transfer.target" if named.null_count() < len(named) else "task.name"


def results(
    trials: pl.DataFrame,
    direction: Direction | Mapping[str, Direction],
    *,
    source: str = "architecture.source",
    target: str | None = None,
    seed: str = "pair",
) -> pl.DataFrame:
    """Return number, source, target, seed, value (objective or null), direction of trials.

    `trials` has the columns READ, as `storage.frames` gives them. A path is one of COLUMNS, a
    parameter, or a dotted path of the configuration (a plug-in stands for its name); `target` is
    `target_of` the trials if left out; `seed` is an integer by which results are paired.
    `direction` is of all targets, or target -> direction. Trials that lack one of the three are
    left out. Raises TransferError for a path that no trial has.
    """
    if trials.is_empty():
        raise TransferError("the study has no trial yet, or none that is feasible, so there is nothing to compare")
    targets = _at(trials, target or target_of(trials))
    sources, texts = _at(trials, source), _at(trials, seed)
    seeds = texts.cast(pl.Int64, strict=False)
    wrong = texts.filter(seeds.is_null() & texts.is_not_null())
    if len(wrong):
        raise TransferError(f"{seed} pairs trials and must be an integer, but one of them has {wrong[0]!r}")
    directions = pl.lit(direction)
    if not isinstance(direction, str):
        directions = targets.replace_strict(direction, default=None)
    rows = trials.select(
        "number",
        source=sources,
        target=targets,
        seed=seeds,
        value="objective",
        direction=directions,
    )
    return rows.drop_nulls(["source", "target", "seed"])


def _at(trials: pl.DataFrame, path: str) -> pl.Series:
    """Return each trial's value at a path, as text; raises TransferError if no trial has it."""
    texts = _looked_up(trials, path) if _PATH.fullmatch(path) else None
    if texts is None or texts.null_count() == len(texts):
        known: dict[str, set[str]] = {"group_number": set(map(str, trials["group_number"].unique()))}
        for params, config in trials.head(_LOOKED_AT).select("params", "config").iter_rows():
            values = {**dict(list_leaves(json.loads(config))), **json.loads(params)}
            for name, value in values.items():
                known.setdefault(name, set()).add(json.dumps(value))
        differing = sorted(name for name, values in known.items() if len(values) > 1)
        choices = ", ".join(differing) or "nothing"
        raise TransferError(f"no trial has {path!r}; what differs between trials is {choices}")
    return texts


def _looked_up(trials: pl.DataFrame, path: str) -> pl.Series:
    if path in COLUMNS:
        return trials[path].cast(pl.String)
    nested = "$" + "".join(f'["{name}"]' for name in path.split("."))
    params, config = pl.col("params").str, pl.col("config").str
    values = (
        params.json_path_match(f'$["{path}"]'),
        config.json_path_match(f'{nested}["name"]'),
        config.json_path_match(nested),
    )
    return trials.select(pl.coalesce(values).alias(path)).to_series()
