"""The estimate that a dry run prints: the time and the size of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from cli.tables import show_json
from spaces.messages import describe_bytes

if TYPE_CHECKING:
    from graft.launching.placement import Placement
    from graft.launching.planning.estimate import Estimate


def print_estimate_table(
    name: str, estimate: Estimate, placement: Placement, gpu: str | None = None, known: Sequence[str] = ()
) -> None:
    """Print the estimate of a launch for people; the packs are timed last, which takes a while.

    For a `gpu` that is not here a rate is estimated. `known` has lines from the database.
    """
    from cli.progress import waiting
    from graft.launching.planning.estimate import plan_packs
    from graft.launching.planning.gpu_estimate import (
        describe_filling,
        describe_gpu_estimate,
        estimate_gpu,
        estimated_as,
    )
    from graft.launching.progress_text import duration

    space, search = estimate.space, estimate.space.search
    structures = _range(estimate.structures) + (" structures" if max(estimate.structures) > 1 else " structure")
    lines = {
        "study": f"{name}, objective {search.objective.direction} {search.objectives_text}",
        "trials": space.describe_size(),
        "packs": f"{structures} a group; device {gpu or placement.device}",
        "steps": f"{_range(estimate.steps)} a trial, validated every {estimate.validate_every:,}; "
        f"{estimate.model_steps:,.0f} model-steps in all",
        "database": f"{estimate.rows:,} metric rows a trial ({search.history}), "
        f"{describe_bytes(estimate.database_bytes)} in all",
    }
    for label, text in (*lines.items(), *(("known", text) for text in known)):
        typer.echo(f"{label:<11} {text}")
    if like := gpu or estimated_as(str(placement.device)):
        with waiting("counting kernels") as say:
            guess = estimate_gpu(space, like, say, placement.workers)
        for label, text in describe_gpu_estimate(guess) if gpu else [(like, describe_filling(guess))]:
            typer.echo(f"{label:<11} {text}")
    if gpu:
        return
    with waiting("timing packs") as say:
        plans = plan_packs(estimate, placement, say)
    for label, name in (("width", "reason"), ("step", "step"), ("evaluation", "evaluation")):
        for text in dict.fromkeys(getattr(plan, name) for plan in plans):
            typer.echo(f"{label:<11} {text}")
    rates = [plan.rate for plan in plans]
    slow, fast = min(rates), max(rates)
    typer.echo(
        f"rate        {slow:,.0f} to {fast:,.0f} model-steps/s on one device, measured on {len(rates)} sampled packs"
    )
    steps = estimate.model_steps
    typer.echo(f"time        {duration(steps / fast)} to {duration(steps / slow)} on one device like this one")


def print_estimate_json(
    name: str, estimate: Estimate, placement: Placement, gpu: str | None, notes: Sequence[str], known: Sequence[str]
) -> None:
    """Print the estimate of a launch for programs, as docs/schemas/dry-run.json describes it."""
    from graft.launching.planning.estimate import plan_packs
    from graft.launching.planning.gpu_estimate import describe_structure, estimate_gpu

    plans = [] if gpu else plan_packs(estimate, placement)
    guess = estimate_gpu(estimate.space, gpu, packs=placement.workers) if gpu else None
    rates = [plan.rate for plan in plans]
    short, long = guess.seconds if guess else (estimate.model_steps / max(rates), estimate.model_steps / min(rates))
    search = estimate.space.search
    show_json(
        {
            "format": 1,
            "study": name,
            "objective": search.objectives_text,
            "direction": search.objective.direction,
            "device": gpu or placement.device,
            "trials": search.trials,
            "structures_per_group": _limits(estimate.structures),
            "steps_per_trial": _limits(estimate.steps),
            "validate_every": estimate.validate_every,
            "model_steps": estimate.model_steps,
            "metric_rows_per_trial": estimate.rows,
            "database_bytes": estimate.database_bytes,
            "is_measured": not gpu,
            "seconds": {"least": short, "most": long},
            "packs": [
                {
                    "lanes": plan.width,
                    "reason": plan.reason,
                    "step": plan.step,
                    "evaluation": plan.evaluation,
                    "model_steps_per_second": plan.rate,
                }
                for plan in plans
            ],
            "structures": [describe_structure(structure) for structure in guess.counted] if guess else [],
            "notes": notes,
            "known": known,
        }
    )


def _limits(values: Sequence[int]) -> dict[str, int]:
    return {"least": min(values), "most": max(values)}


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
