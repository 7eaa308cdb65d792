"""What a launch would be: groups, packs, time and size of the database, without running it."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from cli.live import duration
from spaces.errors import StudyError
from storage.history import predict_bytes, predict_rows

if TYPE_CHECKING:
    from graft.placement import Placement
    from spaces.records import Trial
    from spaces.space import Space

SAMPLED_GROUPS = 20
SAMPLED_TRIALS = 20
"""Trials looked at in each sampled group."""
TIMED = 4
"""Structures trained for a moment, to know the rate."""


def show_estimate(space: Space, placement: Placement) -> None:
    """Print what a launch of this space would be; trains a few sampled packs for about a second each.

    Where the study is long enough to pay for it, pack widths are tried for one of them, for a few seconds more.
    """
    search = space.search
    groups = math.ceil(search.trials / search.group)
    sampled = _sample(space, groups)
    packs = [Counter(trial.structure for trial in group) for group in sampled]
    every = sampled[0][0].config["training"]["validate_every"]
    steps = [trial.config["training"]["steps"] for group in sampled for trial in group]
    total_steps = search.trials * sum(steps) / len(steps)
    from workers.engine.timing import metrics_a_validation

    rows = predict_rows(search.history, math.ceil(max(steps) / every), metrics_a_validation(sampled[0][0]))
    typer.echo(f"study       {space.name}, objective {search.objective.direction} {search.objective}")
    typer.echo(f"trials      {search.trials:,} in {groups:,} groups of {search.group:,}")
    typer.echo(f"packs       {_structures(packs)} a group; device {placement.device}")
    typer.echo(f"steps       {_range(steps)} a trial, validated every {every:,}; {total_steps:,.0f} model-steps in all")
    typer.echo(
        f"database    {rows:,} metric rows a trial ({search.history}), {_size(_bytes(space, sampled, rows))} in all"
    )
    asked = placement.width and min(placement.width, space.search.trials)  # as a launch has it
    plans = _fitting(_spread(sampled), replace(placement, width=asked), total_steps)
    for reason in dict.fromkeys(plan.reason for plan in plans):
        typer.echo(f"width       {reason}")
    rates = [plan.rate for plan in plans]
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


def _spread(sampled: Sequence[Sequence[Trial]]) -> list[Trial]:
    """Trials of a few different structures, from early and late groups."""
    spread = [sampled[index * (len(sampled) - 1) // max(1, TIMED - 1)] for index in range(TIMED)]
    trials = {trial.structure: trial for index, group in enumerate(spread) for trial in [group[index % len(group)]]}
    return list(trials.values())


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How packs of one structure would be trained."""

    width: int
    reason: str
    rate: float
    """Model-steps per second of the whole device."""


def _fitting(trials: Sequence[Trial], placement: Placement, total_steps: float) -> list[_Plan]:
    """As `_plans`, with half of the usual width until memory is enough; raises StudyError where it is for no width."""
    from workers.engine.devices import default_width
    from workers.engine.memory import Shortage, attempt

    device = str(placement.device)
    usual = default_width(device)
    while isinstance(plans := attempt(partial(_plans, trials, placement, total_steps, usual), device), Shortage):
        if placement.width or usual == 1:
            raise StudyError(f"a pack of this space does not fit into the memory of {device}: {plans.reason}")
        usual //= 2
    return plans


def _plans(trials: Sequence[Trial], placement: Placement, total_steps: float, usual: int) -> list[_Plan]:
    """What a launch would do with packs of these structures, of which the first may have its widths tried now."""
    from workers.engine.devices import default_width, default_workers
    from workers.engine.process import prepare
    from workers.engine.timing import model_steps_per_second
    from workers.engine.widths import FoundWidths

    prepare()
    device = str(placement.device)
    workers = placement.workers or default_workers(device)

    def plan(trial: Trial, width: int, reason: str) -> _Plan:
        rate = workers * model_steps_per_second(trial, width=width, device=device)
        return _Plan(width=width, reason=f"{width:,} lanes a pack, {reason}", rate=rate)

    if placement.width:
        return [plan(trial, placement.width, "as asked for with --pack") for trial in trials]
    said = "the default" if usual == default_width(device) else "what fits into memory"
    reason = f"{said}; others are tried as soon as 2 % of the time trained pays for it"
    plans = [plan(trial, usual, reason) for trial in trials]
    finder = FoundWidths(device=device)
    finder.add_training_time(total_steps / max(plan.rate for plan in plans))
    finder.explore(trials[0])
    found = [(trial, finder.find(trial), finder.rates(trial)) for trial in trials]
    return [
        plan(trial, width, _because(rates)) if width else usually
        for (trial, width, rates), usually in zip(found, plans, strict=True)
    ]


def _because(rates: Mapping[int, float]) -> str:
    curve = ", ".join(f"{rate:,.0f} with {width:,}" for width, rate in rates.items())
    return (
        f"the fewest within 5 % of the fastest tried; model-steps/s of one worker: {curve or 'no width fits in memory'}"
    )
