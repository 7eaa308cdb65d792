"""A stored trial brought back, to be trained again."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.look import stored_trial
from cli.wiring import version
from spaces.errors import StudyError
from spaces.records import Stage, Trial
from spaces.space import Space
from storage.frames import Reader


def restored(reader: Reader, space: Space, study: Mapping[str, Any], row: Mapping[str, Any]) -> Trial:
    """The trial of a stored row; raises StudyError if this version of Graft makes another trial of its draws."""
    trial = space.restore(_line_of(reader, study["name"], row))
    _check_resolved(trial, study, row)
    return trial


def place_like(trained_on: str | None) -> str:
    """The device of this machine that is most like the one a trial was trained on."""
    from workers.pool import devices

    kind = trained_on or devices.default_device()
    return kind if devices.known(kind) else "cpu"


@contextmanager
def training_bar(number: int, steps: int) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal while a trial trains; gives what is to be told the step reached."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"trial {number}", total=steps)
        yield lambda step: bar.update(task, completed=step)


def _line_of(reader: Reader, study: str, row: Mapping[str, Any]) -> list[Stage]:
    """The trial and those from whose states it goes on, the first of the line first."""
    line = [row]
    while line[-1]["parent"] is not None:
        line.append(stored_trial(reader, study, line[-1]["parent"]))
    return [Stage(one["number"], json.loads(one["draws"]), one["parent_step"] or 0) for one in reversed(line)]


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
