"""A stored trial brought back, to be trained again."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.look import stored_metrics, stored_trial
from graft.families import families, version
from spaces.errors import StudyError
from spaces.records import TERMINAL, StoredTrial, Trial
from spaces.space import Space
from storage.frames import Reader

Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N. Default: the kind of device that trained the trial.")
]


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the database knows of a trial."""

    trial: Trial
    row: Mapping[str, Any]
    """Of the table of trials."""
    metrics: Sequence[tuple[int, str, str, str, float | None]]
    """Step, name, variant, condition, value."""
    steps: int
    """As far as it was trained."""
    trained_on: str | None
    """Kind of device; None where its worker is unknown."""


def known(reader: Reader, study: str, numbers: Sequence[int]) -> tuple[Space, list[Known]]:
    """A study's space and these trials of it.

    Raises StudyError for one that is not there, or of whose draws this version of Graft makes another trial.
    """
    from spaces import parse

    found = reader.study(study)
    space = parse(found["space"], f"the space of study {study}", families())
    kinds = {worker: device.partition(":")[0] for worker, device in reader.workers(study)["id", "device"].rows()}
    return space, [_known(reader, space, found, stored_trial(reader, study, number), kinds) for number in numbers]


def _known(
    reader: Reader, space: Space, study: Mapping[str, Any], row: Mapping[str, Any], kinds: Mapping[str, str]
) -> Known:
    trial = space.restore(_line_of(reader, study["name"], row))
    _check_resolved(trial, study, row)
    metrics = stored_metrics(reader, row["id"]).rows()
    made = max([row["steps"], *(step for step, *_ in metrics)]) if row["state"] in TERMINAL else row["steps"]
    return Known(trial=trial, row=row, metrics=metrics, steps=made, trained_on=kinds.get(row["worker"]))


def place_of(found: Known, device: str | None) -> str:
    """Where to train a trial again: on the device asked for, else on that of this machine most like its own."""
    from workers.engine import devices

    kind = device or found.trained_on or devices.default_device()
    return kind if device or devices.known(kind) else "cpu"


@contextmanager
def training_bar(number: int, steps: int) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal while a trial trains; gives what is to be told the step reached."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"trial {number}", total=steps)
        yield lambda step: bar.update(task, completed=step)


def _line_of(reader: Reader, study: str, row: Mapping[str, Any]) -> list[StoredTrial]:
    """The trial and those from whose states it goes on, the first of the line first."""
    line = [row]
    while line[-1]["parent"] is not None:
        line.append(stored_trial(reader, study, line[-1]["parent"]))
    return [_stage(one) for one in reversed(line)]


def _stage(row: Mapping[str, Any]) -> StoredTrial:
    draws, params, config = (json.loads(row[name]) for name in ("draws", "params", "config"))
    return StoredTrial(row["number"], draws, row["parent_step"] or 0, params, config)


def _check_resolved(trial: Trial, study: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Raise StudyError if this version of Graft makes another trial of the stored draws."""
    stored = {"seed": row["seed"], **dict(_leaves(json.loads(row["config"])))}
    resolved = {"seed": trial.seed, **dict(_leaves(trial.config))}
    for path in sorted(stored):  # what only this version knows has its default: the numbers will tell
        before, now = stored[path], resolved.get(path)
        if before != now or path not in resolved:
            raise StudyError(
                f"trial {trial.number} of {study['name']}: {path} is stored as {before!r}, "
                f"but Graft {version()} reads {now!r}; replay it with Graft {study['version']}, which made the study"
            )


def _leaves(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path -> value, through nested configurations."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
