"""A space looked at before anything runs: its values, its draws, and trials as a launch would start
them.

Polars, which takes a third of a second, is imported where a frame is made: `search space check`
makes none.
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
    """Trials by the space's own sampler, at most so many, spread evenly over the study."""
    planned = space.search.trials
    numbers = [index * planned // count for index in range(count)] if count < planned else range(planned)
    strategy = begin(space, [])
    return [trial for number in numbers for trial in strategy.ask(strategy.ready(range(number, number + 1)))]


def summarise(space: Space) -> str:
    """Return the size of a study in a line: groups, trials, steps, validations, what is optimised and how."""
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
    """Name of every packaged space, and the first comment of its file."""
    import polars as pl

    names = catalogue.packaged_spaces()
    about: list[str] = []
    for name in names:
        lines = catalogue.read_text(name).splitlines()
        about.append(next((line.lstrip("# ") for line in lines if line.startswith("#")), ""))
    return pl.DataFrame({"name": names, "about": about})
