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
"""What is read of a trial."""

_PATH = re.compile(r"\w+(\.\w+)*")
_LOOKED_AT = 1000
"""Trials that are looked at to tell what differs between them."""


def target_of(trials: pl.DataFrame) -> str:
    """Return the path that says what a trial was trained on.

    It is the name that a transfer gives its tasks, or the task's own.
    """
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
    """Return number, source, target, seed, value (the trial's objective or null), direction; for `compare`.

    `trials` has the columns READ, as `storage.frames` gives them. A path is one of COLUMNS, a parameter, or a dotted
    path of the configuration (a plug-in stands for its name); without `target` it is `target_of` the trials; `seed` is
    an integer that tells which results belong together. `direction`: of all targets, or target -> direction. Trials
    that lack one of the three are left out. Raises TransferError for a path that no trial has.
    """
    if trials.is_empty():
        raise TransferError("the study has no trial yet, so there is nothing to compare")
    targets = _at(trials, target or target_of(trials))
    sources, texts = _at(trials, source), _at(trials, seed)
    seeds = texts.cast(pl.Int64, strict=False)
    wrong = texts.filter(seeds.is_null() & texts.is_not_null())
    if len(wrong):
        raise TransferError(f"{seed} pairs trials and must be an integer, but one of them has {wrong[0]!r}")
    directions = pl.lit(direction) if isinstance(direction, str) else targets.replace_strict(direction, default=None)
    found = trials.select(
        "number",
        source=sources,
        target=targets,
        seed=seeds,
        value="objective",
        direction=directions,
    )
    return found.drop_nulls(["source", "target", "seed"])


def _at(trials: pl.DataFrame, path: str) -> pl.Series:
    """Return the value of each trial at a path, as text; raises TransferError where no trial has it."""
    found = _looked_up(trials, path) if _PATH.fullmatch(path) else None
    if found is None or found.null_count() == len(found):
        known: dict[str, set[str]] = {"group_number": set(map(str, trials["group_number"].unique()))}
        for params, config in trials.head(_LOOKED_AT).select("params", "config").iter_rows():
            for name, value in {**dict(list_leaves(json.loads(config))), **json.loads(params)}.items():
                known.setdefault(name, set()).add(json.dumps(value))
        choices = ", ".join(sorted(name for name, values in known.items() if len(values) > 1)) or "nothing"
        raise TransferError(f"no trial has {path!r}; what differs between trials is {choices}")
    return found


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
