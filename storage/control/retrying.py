"""The trials that `retry` queues again; a function is a step of the caller's transaction.

A failed or diverged trial may have decided what later trials are. An arm confirms the best of its
configurations, and stage two of a transfer trains the best trial of each search. With another
result another one may be the best, so that what goes by one name would be trials of two
configurations. So once such trials have begun, those that decided them keep their results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from spaces.errors import StudyError
from spaces.experiment import ARM, RANK
from spaces.messages import shorten
from spaces.transfer import FINDER, TASK
from storage.schema import trials


def find_retried(connection: Connection, study_id: int, numbers: Collection[int]) -> dict[int, int]:
    """Map numbers to ids of the trials that are queued again: those of `numbers`, or all that may be.

    Raises StudyError for a trial that neither failed nor diverged, and for one that decided what
    trials that have begun are.
    """
    c = trials.c
    ended = (c.study_id == study_id, c.state.in_(("failed", "diverged")))
    rows = connection.execute(select(c.number, c.id, c.params).where(*ended).order_by(c.id)).all()
    candidates = {number: trial for number, trial, _ in rows}
    if others := sorted(set(numbers) - candidates.keys()):
        choices = _list_choices(candidates) if candidates else "no trial did"
        raise StudyError(f"trial {others[0]} neither failed nor diverged; {choices}")
    decided = _find_decided(connection, study_id, {number: params for number, _, params in rows})
    free = candidates.keys() - decided.keys()
    asked = set(numbers) or free or candidates.keys()
    if fixed := sorted(asked & decided.keys()):
        choices = _list_choices(free) if free else "all that failed or diverged had such a part"
        raise StudyError(f"trial {fixed[0]} had a part in choosing {decided[fixed[0]]}; {choices}")
    return {number: trial for number, trial in candidates.items() if number in asked}


def _list_choices(numbers: Iterable[int]) -> str:
    return f"choose of {shorten(', '.join(map(str, sorted(numbers))))}"


def _find_decided(connection: Connection, study_id: int, candidates: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Map the candidates, given their params, that decided what has begun to a text that says it."""
    if not any(ARM in params or TASK in params for params in candidates.values()):
        return {}
    query = select(trials.c.number, trials.c.params).where(trials.c.study_id == study_id)
    every = {number: params for number, params in connection.execute(query)}  # noqa: C416
    arms = {params[ARM] for params in every.values() if RANK in params}
    finders = {params[FINDER] for params in every.values() if FINDER in params}
    tasks = {every[number].get(TASK) for number in finders if number in every}
    decided: dict[int, str] = {}
    for number, params in candidates.items():
        if RANK not in params and params.get(ARM) in arms:
            decided[number] = f"what arm {params[ARM]} confirms, which has begun"
        elif TASK in params and params[TASK] in tasks:
            decided[number] = f"what stage two trains of {params[TASK]}, which has begun"
    return decided
