"""The command replay: train stored trials again, each alone, and say whether they give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.options import Format, Storage, Study, storage_url
from cli.restoring import Device, Known, known, place_of, training_bar
from cli.tables import show, show_text
from graft.comparison import Comparison, Key, Row, compared, difference, frame
from graft.placement import check_device
from search.objectives import objective_after
from spaces.errors import StudyError
from spaces.records import Report
from spaces.settings import Objective
from storage.frames import Reader, open_reader

DIFFERS = 1
"""Exit status when a trial does not reproduce."""


def register(app: typer.Typer) -> None:
    """Add the command of this module to the program."""
    app.command()(replay)


def replay(
    study: Study,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="Numbers of the trials.")],
    storage: Storage = None,
    device: Device = None,
    until: Annotated[int | None, typer.Option(min=1, help="Replay no further than this step.")] = None,
    form: Format = "table",
) -> None:
    """Train trials again, each alone, and compare every stored metric. Exit status 1 if one differs.

    Example: search replay set-complement 17
    """
    if device:
        check_device(device)
    with open_reader(storage_url(storage)) as reader:
        stored = _read(reader, study, numbers, until)
    found = [_judged(one, device, form, alone=len(stored) == 1) for one in stored]
    if form != "table":
        show(frame(found), form)
    good = sum(one.reproduced for one in found)
    if len(found) > 1:
        _say(f"{good:,} of {len(found):,} trials reproduced", form)
    if good < len(found):
        raise typer.Exit(DIFFERS)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a trial's replay is held against."""

    known: Known
    steps: int
    """As far as it is to be replayed."""
    metrics: Mapping[Key, float | None]
    objective: float | None
    """None if it has none, or is replayed in part."""
    goal: Objective
    divergence: str | None
    """How it diverged at `steps`, if it did."""


def _read(reader: Reader, study: str, numbers: Sequence[int], until: int | None) -> list[Stored]:
    """Everything that is needed of these trials; raises StudyError for one that cannot be replayed."""
    space, found = known(reader, study, numbers)
    return [_stored(study, space.search.objective, one, until) for one in found]


def _stored(study: str, goal: Objective, found: Known, until: int | None) -> Stored:
    state, steps = found.row["state"], min(found.steps, until or found.steps)
    metrics = {
        (step, name, variant, condition): value
        for step, name, variant, condition, value in found.metrics
        if step <= steps
    }
    divergence = found.row["error"] if state == "diverged" and steps == found.steps else None
    if not metrics and not divergence:
        where = f"{study} ({state}) has no report up to step {steps:,}"
        raise StudyError(f"trial {found.trial.number} of {where}: there is nothing to compare")
    return Stored(
        known=found,
        steps=steps,
        metrics=metrics,
        objective=found.row["objective"] if steps == found.steps else None,
        goal=goal,
        divergence=divergence,
    )


def _judged(stored: Stored, device: str | None, form: str, alone: bool) -> Comparison:
    """Replay a trial, tell a person the verdict, and with a trial alone all its numbers."""
    found = _replayed(stored, device)
    if form == "table" and alone:
        show(frame([found]).drop("number"), form)
    _say(found.verdict if alone else f"trial {found.number}: {found.verdict}", form)
    return found


def _replayed(stored: Stored, device: str | None) -> Comparison:
    from workers.engine.replay import retrain

    trial, place = stored.known.trial, place_of(stored.known, device)
    with training_bar(trial.number, stored.steps) as watch:
        reports = retrain(trial, steps=stored.steps, device=place, watch=watch)
    return Comparison(
        number=trial.number,
        rows=compared(stored.metrics, reports),
        objective=_objective(stored, reports),
        divergence=stored.divergence,
        replayed_divergence=next((report.error for report in reports if report.state == "diverged"), None),
        trained_on=stored.known.trained_on or place.partition(":")[0],
        replayed_on=place.partition(":")[0],
    )


def _objective(stored: Stored, reports: Sequence[Report]) -> Row | None:
    """The objective, which ranks trials and teaches samplers, as the replay's reports give it."""
    if stored.objective is None:
        return None
    replayed: float | None = None
    for report in reports:
        replayed = objective_after(stored.goal, replayed, report)
    off = difference(stored.objective, replayed)
    return Row(stored.steps, "objective", "", "", stored.objective, replayed, off)


def _say(line: str, form: str) -> None:
    """A line for people: on stdout, or beside the table that goes to a program."""
    if form == "table":
        show_text(line)
    else:
        typer.echo(line, err=True)
