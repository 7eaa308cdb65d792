"""A stored trial as one of Optuna's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from datetime import datetime
from math import inf, nan
from typing import Any, final

from optuna.trial import FrozenTrial, TrialState

from search.optuna_view.ranges import Ranges
from spaces.records import State

COLUMNS = (
    "id", "number", "group_number", "state", "seed", "parent", "parent_step", "steps", "objective", "error",
    "created_at", "started_at", "finished_at", "params", "second_objective", "constraints",
)  # fmt: skip

_STATES: Mapping[State, TrialState] = {
    "queued": TrialState.WAITING,
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}
_ATTRIBUTES = ("number", "group_number", "state", "seed", "steps", "parent", "parent_step", "error")
"""Columns that Optuna has as attributes of a user, unless they are null."""


@final
class ShownTrial(FrozenTrial):
    """A trial of Optuna whose deep copy shares the distributions, which never change."""

    def __deepcopy__(self, memo: object) -> FrozenTrial:
        other = copy(self)
        other.params, other.distributions = dict(self.params), dict(self.distributions)
        other.user_attrs, other.system_attrs = dict(self.user_attrs), dict(self.system_attrs)
        other.intermediate_values = dict(self.intermediate_values)
        return other


def show_trial(
    row: Mapping[str, Any], validations: Mapping[int, float | None], ranges: Ranges, objectives: int
) -> FrozenTrial:
    """Return a row of `trials`, columns COLUMNS, as a trial of Optuna; `ranges` hold its params.

    `validations`: step -> the objective's metric, None if it was not finite, which Optuna has as
    NaN. A trial that finished without its objectives has failed for Optuna, whose complete trials
    have values.
    """
    scores = [row["objective"], row["second_objective"]][:objectives]
    values = None if None in scores else scores
    state = _STATES[row["state"]]
    if state is TrialState.COMPLETE and values is None:
        state = TrialState.FAIL
    started = row["started_at"] or row["created_at"]
    params, others = ranges.split(json.loads(row["params"]))
    trial = ShownTrial(
        number=row["number"],
        trial_id=row["id"],
        state=state,
        value=None,
        values=values if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        datetime_start=None if state is TrialState.WAITING else _local(started),
        datetime_complete=_local(row["finished_at"] or started) if state.is_finished() else None,
        params=params,
        distributions={path: ranges[path] for path in params},
        user_attrs={**{name: row[name] for name in _ATTRIBUTES if row[name] is not None}, **others},
        system_attrs={},
        intermediate_values={step: nan if value is None else value for step, value in validations.items()},
    )
    for text, excess in json.loads(row["constraints"] or "{}").items():
        trial.set_constraint(text, inf if excess is None else excess)
    return trial


def _local(time: datetime) -> datetime:
    """Return a time by the machine's own clock, without a zone, as Optuna has it."""
    return time.astimezone().replace(tzinfo=None)
