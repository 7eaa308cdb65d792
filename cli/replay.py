"""The command replay: train stored trials again, each alone, and say whether they give the same numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.comparison import Comparison, Key, Row, compared, difference, frame
from cli.look import stored_metrics, stored_trial
from cli.options import Format, Storage, Study, storage_url
from cli.placement import check_device
from cli.restoring import place_like, restored, training_bar
from cli.tables import show, show_text
from cli.wiring import families
from search.objectives import objective_after
from spaces.errors import StudyError
from spaces.records import TERMINAL, Report, Trial
from spaces.settings import Objective
from spaces.space import Space
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
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the kind of device that trained the trial.")
    ] = None,
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
    """What the database knows of a trial that is to be replayed."""

    trial: Trial
    steps: int
    """As far as it is to be replayed."""
    metrics: Mapping[Key, float | None]
    objective: float | None
    """None if it has none, or is replayed in part."""
    goal: Objective
    divergence: str | None
    """How it diverged at `steps`, if it did."""
    trained_on: str | None
    """Kind of device; None where its worker is unknown."""


def _read(reader: Reader, study: str, numbers: Sequence[int], until: int | None) -> list[Stored]:
    """Everything that is needed of these trials; raises StudyError for one that cannot be replayed."""
    from spaces import parse

    row = reader.study(study)
    space = parse(row["space"], f"the space of study {study}", families())
    devices = {worker: device.partition(":")[0] for worker, device in reader.workers(study)["id", "device"].rows()}
    return [_stored(reader, space, row, stored_trial(reader, study, number), devices, until) for number in numbers]


def _stored(
    reader: Reader,
    space: Space,
    study: Mapping[str, Any],
    row: Mapping[str, Any],
    devices: Mapping[str, str],
    until: int | None,
) -> Stored:
    trial = restored(reader, space, study, row)
    rows = stored_metrics(reader, row["id"]).rows()
    made = max([row["steps"], *(step for step, *_ in rows)]) if row["state"] in TERMINAL else row["steps"]
    steps = min(made, until or made)
    metrics = {
        (step, name, variant, condition): value for step, name, variant, condition, value in rows if step <= steps
    }
    divergence = row["error"] if row["state"] == "diverged" and steps == made else None
    if not metrics and not divergence:
        where = f"{study['name']} ({row['state']}) has no report up to step {steps:,}"
        raise StudyError(f"trial {trial.number} of {where}: there is nothing to compare")
    return Stored(
        trial=trial,
        steps=steps,
        metrics=metrics,
        objective=row["objective"] if steps == made else None,
        goal=space.search.objective,
        divergence=divergence,
        trained_on=devices.get(row["worker"]),
    )


def _judged(stored: Stored, device: str | None, form: str, alone: bool) -> Comparison:
    """Replay a trial, tell a person the verdict, and with a trial alone all its numbers."""
    found = _replayed(stored, device)
    if form == "table" and alone:
        show(frame([found]).drop("number"), form)
    _say(found.verdict if alone else f"trial {found.number}: {found.verdict}", form)
    return found


def _replayed(stored: Stored, device: str | None) -> Comparison:
    from workers.replay import retrain

    place = device or place_like(stored.trained_on)
    with training_bar(stored.trial.number, stored.steps) as watch:
        reports = retrain(stored.trial, steps=stored.steps, device=place, watch=watch)
    return Comparison(
        number=stored.trial.number,
        rows=compared(stored.metrics, reports),
        objective=_objective(stored, reports),
        divergence=stored.divergence,
        replayed_divergence=next((report.error for report in reports if report.state == "diverged"), None),
        trained_on=stored.trained_on or place.partition(":")[0],
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
