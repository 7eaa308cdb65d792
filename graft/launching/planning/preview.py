"""A space before anything runs: its values, its draws, and trials as a launch would start them.

Polars takes a third of a second, so that only functions that make a frame import it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from search.steering.strategies import begin
from spaces.grammar.formulas import Level
from spaces.plugins import name_of
from spaces.reading import catalogue

if TYPE_CHECKING:
    import polars as pl

    from spaces.records import Trial
    from spaces.space import Space

_DRAWN = {Level.CONSTANT: None, Level.GROUP: "per group", Level.TRIAL: "per trial"}


def sample_trials(space: Space, count: int) -> list[Trial]:
    """Return at most `count` trials by the space's own sampler, spread evenly over the study."""
    planned = space.search.trials
    count = min(count, planned)
    numbers = [index * planned // count for index in range(count)]
    strategy = begin(space, [])
    return [trial for number in numbers for trial in strategy.ask(strategy.ready(range(number, number + 1)))]


def summarise(space: Space) -> str:
    """Return a study in a line: its groups, trials, steps, validations, objectives and sampler."""
    search = space.search
    training = space.sample(0, lambda _: 0.5).config["training"]
    steps, every = training["steps"], training["validate_every"]
    written = {row.path: row.text for row in space.describe() if row.level is not Level.CONSTANT}
    validations = f"{math.ceil(steps / every):,} validations" if "training.steps" not in written else "validated"
    parts = [
        f"{space.name}: {space.describe_size()}",
        f"{written.get('training.steps', f'{steps:,}')} steps each, {validations} every {every:,}",
        f"{search.objective.direction} {search.objectives_text}",
        f"sampler {name_of(search.sampler)}",
        *(f"stopping {name_of(policy)}" for policy in search.stopping),
    ]
    return ", ".join(parts)


def describe_space(space: Space) -> pl.DataFrame:
    """Return a row per value of the space: the draw, its level, its range and its condition."""
    import polars as pl

    rows = [(row.path, row.text, _DRAWN[row.level], row.bounds, row.condition) for row in space.describe()]
    columns = ("path", "value", "drawn", "range", "condition")
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String()), orient="row")


def list_packaged_spaces() -> pl.DataFrame:
    """Return the name of every packaged space and the first comment of its file."""
    import polars as pl

    names = catalogue.packaged_spaces()
    about: list[str] = []
    for name in names:
        lines = catalogue.read_text(name).splitlines()
        about.append(next((line.lstrip("# ") for line in lines if line.startswith("#")), ""))
    return pl.DataFrame({"name": names, "about": about})
