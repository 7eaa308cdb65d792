"""What a launch would be: groups, packs, time and size of the database, without running it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from cli.live import duration
from storage.history import predict_bytes, predict_rows

if TYPE_CHECKING:
    from cli.placement import Placement
    from spaces.records import Trial
    from spaces.space import Space

SAMPLED_GROUPS = 20
SAMPLED_TRIALS = 20
"""Trials looked at in each sampled group."""
TIMED = 4
"""Structures trained for a moment, to know the rate."""
METRICS_PER_VALIDATION = 7
"""tvd, itp, itr of two variants, and the training loss."""


def show_estimate(space: Space, placement: Placement) -> None:
    """Print what a launch of this space would be; trains a few sampled packs for about a second each."""
    search = space.search
    groups = math.ceil(search.trials / search.group)
    sampled = _sample(space, groups)
    packs = [Counter(trial.structure for trial in group) for group in sampled]
    every = sampled[0][0].config["training"]["validate_every"]
    steps = [trial.config["training"]["steps"] for group in sampled for trial in group]
    total_steps = search.trials * sum(steps) / len(steps)
    rows = predict_rows(search.history, math.ceil(max(steps) / every), METRICS_PER_VALIDATION)
    typer.echo(f"study       {space.name}, objective {search.objective.direction} {search.objective}")
    typer.echo(f"trials      {search.trials:,} in {groups:,} groups of {search.group:,}")
    typer.echo(f"packs       {_structures(packs)} a group; device {placement.device}")
    typer.echo(f"steps       {_range(steps)} a trial, validated every {every:,}; {total_steps:,.0f} model-steps in all")
    typer.echo(
        f"database    {rows:,} metric rows a trial ({search.history}), {_size(_bytes(space, sampled, rows))} in all"
    )
    rates = _rates(sampled, placement)
    slow, fast = min(rates), max(rates)
    typer.echo(
        f"rate        {slow:,.0f} to {fast:,.0f} model-steps/s on one device, measured on {len(rates)} sampled packs"
    )
    typer.echo(
        f"time        {duration(total_steps / fast)} to {duration(total_steps / slow)} on one device like this one"
    )


def _sample(space: Space, groups: int) -> list[list[Trial]]:
    """The first trials of a few groups, drawn at random whatever the sampler is."""
    uniform = random.Random(0).random
    chosen = range(0, groups, max(1, groups // SAMPLED_GROUPS))
    sampled: list[list[Trial]] = []
    for group in chosen:
        first = group * space.search.group
        shared = {draw.name: uniform() for draw in space.group_draws}
        numbers = range(first, min(first + min(SAMPLED_TRIALS, space.search.group), space.search.trials))
        trials = [space.sample(n, lambda draw: shared.get(draw.name, uniform())) for n in numbers]  # noqa: B023 - used at once
        sampled.append(trials)
    return sampled


def _structures(packs: Sequence[Counter[str]]) -> str:
    counts = [len(pack) for pack in packs]
    return _range(counts) + (" structures" if max(counts) > 1 else " structure")


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bytes(space: Space, sampled: Sequence[Sequence[Trial]], rows: int) -> int:
    return predict_bytes(sampled[0][0], space.search.trials, rows)


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _rates(sampled: Sequence[Sequence[Trial]], placement: Placement) -> list[float]:
    """Model-steps per second of this machine's device, for a few structures."""
    from workers.pool.devices import default_width, default_workers
    from workers.pool.process import prepare
    from workers.pool.timing import model_steps_per_second

    prepare()
    device = str(placement.device)
    width, workers = placement.width or default_width(device), placement.workers or default_workers(device)
    spread = [sampled[index * (len(sampled) - 1) // max(1, TIMED - 1)] for index in range(TIMED)]
    trials = {trial.structure: trial for index, group in enumerate(spread) for trial in [group[index % len(group)]]}
    return [workers * model_steps_per_second(trial, width=width, device=device) for trial in trials.values()]
