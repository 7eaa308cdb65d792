"""The trials of a study: their states, the best ones, and what their parameters have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import polars as pl

from spaces.records import Params, Scalar, State


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The sampled parameters of some trials."""

    varying: Mapping[str, tuple[Scalar | None, ...]]
    """Parameter -> its value in each of the trials; None if a trial does not have it."""
    shared: Params
    """Parameters of one value in all of them; of a single trial, all vary."""


def count_states(trials: pl.DataFrame) -> dict[State, int]:
    """Count the trials in each state that occurs, in the order of a trial's life."""
    counted = dict(trials["state"].value_counts().iter_rows())
    return {state: counted[state] for state in get_args(State) if state in counted}


def best_trials(ended: pl.DataFrame, direction: str, top: int = 10) -> pl.DataFrame:
    """Return the rows of the best trials, best first; of equally good ones the earlier ones."""
    return ended.sort("objective", "number", descending=[direction == "maximize", False]).head(top)


def compare_parameters(params: pl.Series) -> Parameters:
    """Separate the parameters that differ between trials from the others; `params` are JSON."""
    decoded: list[Params] = [json.loads(text) for text in params]
    paths = dict.fromkeys(path for each in decoded for path in each)
    rows = {path: tuple(each.get(path) for each in decoded) for path in paths}
    shared: dict[str, Scalar] = {}
    for path, values in rows.items():
        if len(values) > 1 and len(set(values)) == 1 and values[0] is not None:
            shared[path] = values[0]
    varying = {path: values for path, values in rows.items() if path not in shared}
    return Parameters(varying=varying, shared=shared)
