"""A stored trial restored from its draws, to be trained again."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.machine.devices import similar_device
from graft.plugins.data import DataChange, find_changed_data
from graft.plugins.families import families, version
from graft.plugins.stored import read_outside
from graft.stored.fingerprints import StoredFingerprint, follow, read_fingerprints
from graft.stored.trials import read_lineage, read_metrics
from spaces import parse_stored
from spaces.errors import PluginError, StudyError
from spaces.plugins.active import using
from spaces.plugins.bundles import Outside
from spaces.plugins.digests import read_data
from spaces.plugins.files import find_place
from spaces.records import DATA, TERMINAL, StoredTrial, Trial
from spaces.settings import Objective, list_leaves
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class RestoredTrial:
    """A trial and its rows in the database."""

    trial: Trial
    objective: Objective
    """The objective of its search: in a transfer that of the trial's own task."""
    row: Mapping[str, Any]
    metrics: Sequence[tuple[int, str, str, str, float | None]]
    """Step, name, variant, condition, value."""
    steps: int
    """The last step to which the trial was trained."""
    trained_on: str | None
    """Kind of device; None if its worker is unknown."""
    outside: Outside
    fingerprints: Sequence[StoredFingerprint]
    """The fingerprints of the training of the trial and its ancestors, the last ones first."""
    data_changes: Sequence[str] = ()
    """A line for each file that has changed since; the present one is used."""

    @property
    def trained_step_kind(self) -> str | None:
        """The kind of step that computed the trial, else the kind of device, else None."""
        return self.row["step_kind"] or self.trained_on

    @contextmanager
    def as_it_was_trained(self) -> Generator[None]:
        """Use the plug-ins and the kind of step that trained the trial."""
        from workers.engine.lane_programs import as_trained_by

        with using(self.outside), as_trained_by(self.trained_step_kind or ""):
            yield

    def device(self, requested: str | None) -> str:
        """Return the requested device, or the one of this machine most like the trial's own."""
        return requested or similar_device(self.trained_on)


def restore_trials(
    reader: Reader, study: str, numbers: Sequence[int], *, accept_changes: bool = False
) -> list[RestoredTrial]:
    """Return these trials of a study.

    Raises StudyError for a missing trial, for draws of which this Graft makes another trial, and
    for changed data without `accept_changes`.
    """
    stored = reader.study(study)
    row, fingerprints = stored.row, read_fingerprints(reader, study)
    kinds = {worker: device.partition(":")[0] for worker, device in stored.workers()["id", "device"].rows()}
    return [
        _restore_trial(reader, row, number, kinds, fingerprints, accept_changes=accept_changes) for number in numbers
    ]


def _restore_trial(
    reader: Reader,
    study: Mapping[str, Any],
    number: int,
    kinds: Mapping[str, str],
    fingerprints: Sequence[StoredFingerprint],
    *,
    accept_changes: bool,
) -> RestoredTrial:
    """Return a trial, given its study's row, the workers' kinds of device, and the fingerprints."""
    lineage = read_lineage(reader, study["name"], number)
    conditions = [condition for row in reversed(lineage) for condition in follow(fingerprints, row["fingerprint"])]
    trained_under = conditions or [StoredFingerprint(numerics=study["numerics"], version=study["version"], sources={})]
    digests = {digest for digest in trained_under[0].sources.values() if digest}
    outside = read_outside(reader, study["name"], digests)
    changes = list(_find_data_changes(reader, study["name"], outside, trained_under[0]))
    if changes and not accept_changes:
        raise StudyError(
            f"trial {number} of {study['name']} was trained on other data: "
            f"{'; '.join(change.description for change in changes)}; put it back, or go on with --accept-changes"
        )
    if gone := [change.description for change in changes if change.now is None]:
        raise StudyError(f"trial {number} of {study['name']} cannot be trained again: {'; '.join(gone)}")
    outside.data.update({change.name: change.now for change in changes if change.now})
    row = lineage[-1]
    with using(outside):
        space = parse_stored(study, families())
        trial = space.restore([_read_stage(ancestor) for ancestor in lineage])
        _check_restored(trial, study, row)
    metrics, steps = read_metrics(reader, row["id"]).rows(), row["steps"]
    if row["state"] in TERMINAL:
        steps = max([steps, *(step for step, *_ in metrics)])
    return RestoredTrial(
        trial=trial,
        objective=space.search_of(number).objective,
        row=row,
        metrics=metrics,
        steps=steps,
        trained_on=kinds.get(row["worker"]),
        outside=outside,
        fingerprints=trained_under,
        data_changes=[change.description for change in changes],
    )


def _read_stage(row: Mapping[str, Any]) -> StoredTrial:
    """Return what a trial's row says of how the trial was made."""
    draws, params, config = (json.loads(row[name]) for name in ("draws", "params", "config"))
    return StoredTrial(row["number"], draws, row["parent_step"] or 0, params, config)


def _find_data_changes(
    reader: Reader, study: str, outside: Outside, trained: StoredFingerprint
) -> Iterator[DataChange]:
    """Yield each file that has changed since a trial read it; `outside` has the known versions."""
    read = {name.removeprefix(DATA): digest for name, digest in trained.sources.items() if name.startswith(DATA)}
    here = outside.data
    known = {name: here[name] for name in read if name in here and here[name].digest == read[name]}
    yield from find_changed_data(reader, study, known)
    for name in read.keys() - known.keys():  # the study has no such version, so that its size is unknown
        was = f"{name} had SHA-256 {read[name]}"
        try:
            now = read_data(find_place(name, Path.cwd()))
        except (OSError, PluginError):
            yield DataChange(name, None, f"{was}, and is not there any more")
            continue
        if now.digest != read[name]:
            yield DataChange(name, now, f"{was}, now it has {now.state.describe()}")


def _check_restored(trial: Trial, study: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    """Raise StudyError if this version of Graft makes another trial of the stored draws."""
    stored = {"seed": row["seed"], **dict(list_leaves(json.loads(row["config"])))}
    restored = {"seed": trial.seed, **dict(list_leaves(trial.config))}
    for path in sorted(stored):  # fields that are new in this version have their defaults
        before, now = stored[path], restored.get(path)
        if before != now or path not in restored:
            raise StudyError(
                f"trial {trial.number} of {study['name']}: {path} is stored as {before!r}, "
                f"but Graft {version()} reads {now!r}; replay it with Graft {study['version']}, which made the study"
            )
