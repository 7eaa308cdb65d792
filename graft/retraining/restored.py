"""A stored trial restored from its draws, to be trained again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.devices import similar_device
from graft.families import families, version
from graft.stored.trials import read_metrics, read_trial
from spaces.errors import StudyError
from spaces.records import TERMINAL, StoredTrial, Trial
from spaces.space import Space
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class RestoredTrial:
    """A trial and what the database has of it."""

    trial: Trial
    row: Mapping[str, Any]
    """Of the table of trials."""
    metrics: Sequence[tuple[int, str, str, str, float | None]]
    """Step, name, variant, condition, value."""
    steps: int
    """As far as it was trained."""
    trained_on: str | None
    """Kind of device; None where its worker is unknown."""
    made_by: str
    """The version of Graft that made the study."""
    numerics: int
    """The version of the study's numerics."""

    @property
    def trained_by(self) -> str | None:
        """What computed its steps, the kind of device where no more is known; None where nothing is."""
        return self.row["step_kind"] or self.trained_on

    def device(self, requested: str | None) -> str:
        """Where to train it again: on the device requested, else on the one of this machine most like its own."""
        return requested or similar_device(self.trained_on)


def restore_trials(reader: Reader, study: str, numbers: Sequence[int]) -> tuple[Space, list[RestoredTrial]]:
    """A study's space and these trials of it.

    Raises StudyError for one that is not there, or of whose draws this version of Graft makes another trial.
    """
    from spaces import parse

    row = reader.study(study)
    space = parse(row["space"], f"the space of study {study}", families())
    kinds = {worker: device.partition(":")[0] for worker, device in reader.workers(study)["id", "device"].rows()}
    return space, [_restore(reader, space, row, number, kinds) for number in numbers]


def _restore(
    reader: Reader, space: Space, study: Mapping[str, Any], number: int, kinds: Mapping[str, str]
) -> RestoredTrial:
    row = read_trial(reader, study["name"], number)
    trial = space.restore(_read_lineage(reader, study["name"], row))
    _check_restored(trial, study, row)
    metrics = read_metrics(reader, row["id"]).rows()
    steps = row["steps"]
    if row["state"] in TERMINAL:
        steps = max([steps, *(step for step, *_ in metrics)])
    return RestoredTrial(
        trial=trial,
        row=row,
        metrics=metrics,
        steps=steps,
        trained_on=kinds.get(row["worker"]),
        made_by=study["version"],
        numerics=study["numerics"],
    )


def _read_lineage(reader: Reader, study: str, row: Mapping[str, Any]) -> list[StoredTrial]:
    """The trial and those whose states it took over, the first of them first."""
    rows = [row]
    while rows[-1]["parent"] is not None:
        rows.append(read_trial(reader, study, rows[-1]["parent"]))
    return [_stage(one) for one in reversed(rows)]


def _stage(row: Mapping[str, Any]) -> StoredTrial:
    draws, params, config = (json.loads(row[name]) for name in ("draws", "params", "config"))
    return StoredTrial(row["number"], draws, row["parent_step"] or 0, params, config)


def _check_restored(trial: Trial, study: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Raise StudyError if this version of Graft makes another trial of the stored draws."""
    stored = {"seed": row["seed"], **dict(_flatten(json.loads(row["config"])))}
    restored = {"seed": trial.seed, **dict(_flatten(trial.config))}
    for path in sorted(stored):  # what only this version knows has its default: the numbers will tell
        before, now = stored[path], restored.get(path)
        if before != now or path not in restored:
            raise StudyError(
                f"trial {trial.number} of {study['name']}: {path} is stored as {before!r}, "
                f"but Graft {version()} reads {now!r}; replay it with Graft {study['version']}, which made the study"
            )


def _flatten(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path -> value, through nested configurations."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
