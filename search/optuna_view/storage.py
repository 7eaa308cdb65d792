"""Optuna's storage over stored studies, read-only."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from copy import deepcopy as copy_deeply
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple, NoReturn, Protocol, final

from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from search.optuna_view.ranges import Ranges
from search.optuna_view.trials import show_trial
from spaces.bounds import MOST_TRIALS
from spaces.errors import StorageError
from spaces.space import Space

Version = tuple[Any, ...]
"""A value that differs between two readings of a trial that changed."""


class Reading(NamedTuple):
    """Some trials of a study at one moment."""

    versions: Mapping[int, Version]
    """Number -> version of each shown trial; that of a running one never lasts."""
    rows: Sequence[Mapping[str, Any]]
    """The new or changed trials: columns `trials.COLUMNS`."""
    validations: Mapping[int, Mapping[int, float | None]]
    """Number of such a trial -> step -> the objective's metric; None if it was not finite."""


class StoredStudies(Protocol):
    """A reader of a database for the storage below, from any thread."""

    def list_studies(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of `studies`, oldest first."""
        ...

    def read_spaces(self, study: str) -> Sequence[Space]:
        """Return the readable spaces that a study has had, the present one last."""
        ...

    def read_trials(self, study: str, known: Mapping[int, Version]) -> Reading:
        """Return the trials to show, with rows and validations of those that are not `known`."""
        ...


@dataclass
class _Memory:
    """A study as it was last read."""

    space: Any
    """The column `space` of the study's row, which decides the ranges."""
    ranges: Ranges
    versions: Mapping[int, Version] = field(default_factory=dict[int, Version])
    trials: dict[int, FrozenTrial] = field(default_factory=dict[int, FrozenTrial])


def _refuse(name: str) -> Any:
    """Return a method of this name, which raises StorageError."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise StorageError(
            f"{name}: Optuna only reads studies of Graft; `search enqueue` adds trials, and what "
            "`search export STUDY --to optuna FILE` writes is Optuna's own"
        )

    return refuse


@final
class ReadOnlyStorage(BaseStorage):
    """The studies of a database as Optuna's, as they are now; writing methods raise StorageError.

    Trials have their own numbers and ids. The list of trials is sorted by number, and may have
    gaps: a large study shows some of its trials, and numbers start in an order that suits packs.
    """

    def __init__(self, stored: StoredStudies) -> None:
        self._stored = stored
        self._memories: dict[int, _Memory] = {}
        self._lock = RLock()

    # -- a study --------------------------------------------------------------------------------

    def get_all_studies(self) -> list[FrozenStudy]:
        """Return all studies, oldest first."""
        return [
            FrozenStudy(
                study_name=row["name"],
                direction=None,
                directions=_directions(row),
                user_attrs=_describe(row),
                system_attrs=_name_objectives(row),
                study_id=row["id"],
            )
            for row in self._stored.list_studies()
        ]

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the study's id; raises KeyError, as Optuna's storages do, if there is none."""
        rows = self._stored.list_studies()
        return next((row["id"] for row in rows if row["name"] == study_name), None) or _miss(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        """Return the study's name."""
        return self._row(study_id)["name"]

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """Return the direction of the objective, and of the second one."""
        return _directions(self._row(study_id))

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the facts for people: objectives, state, note, tags, the space."""
        return _describe(self._row(study_id))

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the names of the objectives, as Optuna keeps them."""
        return _name_objectives(self._row(study_id))

    def _row(self, study_id: int) -> Mapping[str, Any]:
        rows = self._stored.list_studies()
        return next((row for row in rows if row["id"] == study_id), None) or _miss(study_id)

    # -- its trials -----------------------------------------------------------------------------

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the shown trials, by number; those that ended before the last call are kept."""
        with self._lock:
            row = self._row(study_id)
            memory = self._memories.get(row["id"])
            if memory is None or memory.space != row["space"]:
                spaces = self._stored.read_spaces(row["name"])
                memory = self._memories[row["id"]] = _Memory(row["space"], Ranges(spaces))
            reading = self._stored.read_trials(row["name"], memory.versions)
            params = [json.loads(record["params"]) for record in reading.rows]
            if memory.ranges.cover(params) and memory.trials:
                # A wider range is another distribution of the remembered trials, too.
                reading = self._stored.read_trials(row["name"], {})
                memory.ranges.cover(json.loads(record["params"]) for record in reading.rows)
            for record in reading.rows:
                seen = reading.validations.get(record["number"], {})
                trial = show_trial(record, seen, memory.ranges, len(_directions(row)))
                memory.trials[record["number"]] = trial
            memory.trials = {number: memory.trials[number] for number in reading.versions}
            memory.versions = reading.versions
            trials = [memory.trials[number] for number in sorted(memory.trials)]
        chosen = [trial for trial in trials if states is None or trial.state in states]
        return copy_deeply(chosen) if deepcopy else chosen

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial by its id; raises KeyError if none of that id is shown."""
        study_id, number = divmod(trial_id, MOST_TRIALS)
        return copy_deeply(self._find(study_id, number))

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        """Return the id of a trial by its number, which need not be its index in the list."""
        return study_id * MOST_TRIALS + self._find(study_id, trial_number).number

    def _find(self, study_id: int, number: int) -> FrozenTrial:
        trials = self.get_all_trials(study_id, deepcopy=False)
        return next((trial for trial in trials if trial.number == number), None) or _miss(number)

    # -- methods that would write ---------------------------------------------------------------

    create_new_study = _refuse("create_new_study")
    delete_study = _refuse("delete_study")
    set_study_user_attr = _refuse("set_study_user_attr")
    set_study_system_attr = _refuse("set_study_system_attr")
    create_new_trial = _refuse("create_new_trial")
    set_trial_param = _refuse("set_trial_param")
    set_trial_state_values = _refuse("set_trial_state_values")
    set_trial_intermediate_value = _refuse("set_trial_intermediate_value")
    set_trial_user_attr = _refuse("set_trial_user_attr")
    set_trial_system_attr = _refuse("set_trial_system_attr")


def _miss(key: object) -> NoReturn:
    raise KeyError(f"there is no {key!r}")


def _directions(row: Mapping[str, Any]) -> list[StudyDirection]:
    words = [row["direction"]]
    if row["second_objective"]:
        words.append(row["second_objective"].partition(" ")[0])
    return [StudyDirection.MAXIMIZE if word == "maximize" else StudyDirection.MINIMIZE for word in words]


def _name_objectives(row: Mapping[str, Any]) -> dict[str, Any]:
    names = [row["objective"]]
    if row["second_objective"]:
        names.append(row["second_objective"].partition(" ")[2])
    return {"study:metric_names": names}


def _describe(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("objective", "second_objective", "state", "trials", "seed", "note", "version", "space")
    attributes = {name: row[name] for name in names if row[name] not in (None, "")}
    tags = json.loads(row["tags"])
    return {**attributes, "tags": tags} if tags else attributes
