"""A space looked at before anything runs: its values, its draws, and trials as a launch would start them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from search.steering.strategies import begin
from spaces.grammar.formulas import Level
from spaces.reading import catalogue

if TYPE_CHECKING:
    from spaces.records import Trial
    from spaces.space import Space

_DRAWN = {Level.CONSTANT: None, Level.GROUP: "per group", Level.TRIAL: "per trial"}


def sample_trials(space: Space, count: int) -> list[Trial]:
    """Trials by the space's own sampler, at most so many, spread evenly over the study."""
    planned = space.search.trials
    numbers = [index * planned // count for index in range(count)] if count < planned else range(planned)
    strategy = begin(space, [])
    return [trial for number in numbers for trial in strategy.ask(strategy.ready(range(number, number + 1)))]


def describe_space(space: Space) -> pl.DataFrame:
    """One row per value of the space: what is drawn, for a group or for a trial, from where, under which condition."""
    rows = [(row.path, row.text, _DRAWN[row.level], row.bounds, row.condition) for row in space.describe()]
    columns = ("path", "value", "drawn", "range", "condition")
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def list_packaged_spaces() -> pl.DataFrame:
    """Name of every packaged space, and the first comment of its file."""
    names = catalogue.packaged_spaces()
    return pl.DataFrame({"name": names, "about": [_first_comment(name) for name in names]})


def _first_comment(name: str) -> str:
    lines = catalogue.read_text(name).splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
