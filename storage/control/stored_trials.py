"""Reads of a study's stored trials; each function is a step of the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, func, select

from spaces.errors import RowError
from spaces.records import LearnedSpline, QueuedTrial, State, StoredTrial
from spaces.settings import Direction
from storage.control import checkpointing
from storage.schema import architectures, trial_id, trials

_IN = 10_000
"""Values in one IN (...): below the limits of both databases."""


def split_ids(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Return the ids, as many at once as an IN (...) takes."""
    return (ids[i : i + _IN] for i in range(0, len(ids), _IN))


def read_queued(connection: Connection, study_id: int, numbers: Iterable[int]) -> list[QueuedTrial]:
    """Return the trials among these that are queued, in order of number."""
    c, queue = trials.c, list[QueuedTrial]()
    for part in split_ids(sorted(trial_id(study_id, number) for number in numbers)):
        kept = checkpointing.read(connection, part)
        these = select(c.id, c.number, c.deaths).where(c.id.in_(part), c.state == "queued")
        for trial, number, crashes in connection.execute(these.order_by(c.id)):
            queue.append(QueuedTrial(number, crashes, kept.get(trial, ())))
    return queue


def read_lineages(connection: Connection, study_id: int, numbers: Sequence[int]) -> list[list[StoredTrial]]:
    """Return the lineage of each trial: first the trial that started from step 0, last itself."""
    c = trials.c
    known: dict[int, tuple[StoredTrial, int | None]] = {}
    """Number -> the trial and its parent."""
    wanted = set(numbers)
    while wanted:
        asked = list(wanted)[:_IN]
        these = c.id.in_([trial_id(study_id, number) for number in asked])
        columns = (c.number, c.draws, c.parent_step, c.params, c.config, c.parent)
        rows = connection.execute(select(*columns).where(these)).all()
        for number, draws, step, params, config, parent in rows:
            known[number] = StoredTrial(number, draws, step or 0, params, config), parent
        parents = {parent for *_, parent in rows if parent is not None}
        wanted = wanted.difference(asked) | (parents - known.keys())
    lineages: list[list[StoredTrial]] = []
    for number in numbers:
        trial, parent = known[number]
        lineage = [trial]
        while parent is not None:
            check_parent(trial.number, parent)
            trial, parent = known[parent]
            lineage.append(trial)
        lineages.append(lineage[::-1])
    return lineages


def check_parent(number: int, parent: int) -> None:
    """Raise RowError unless a parent comes before its trial: edited rows could go in circles."""
    if parent >= number:
        problem = f"trial {number} goes on from trial {parent}, no earlier one"
        raise RowError(f"{problem}; its row was edited by hand")


def read_splines(connection: Connection, study_id: int) -> dict[int, tuple[LearnedSpline, ...]]:
    """Map ids of trials to the splines that each learned, in order of component."""
    c = architectures.c
    these = select(c.trial_id, c.component, c.low, c.high, c.knots)
    query = these.where(c.study_id == study_id).order_by(c.trial_id, c.component)
    learned: dict[int, tuple[LearnedSpline, ...]] = {}
    for trial, component, low, high, knots in connection.execute(query):
        spline = LearnedSpline(component=component, low=low, high=high, knots=tuple(knots))
        learned[trial] = (*learned.get(trial, ()), spline)
    return learned


def find_best(connection: Connection, study_id: int, direction: Direction) -> tuple[float, int] | None:
    """Return the best objective of feasible trials and its lowest trial; None if there is none."""
    c = trials.c
    order = c.objective if direction == "minimize" else c.objective.desc()
    known = select(c.objective, c.number).where(
        c.study_id == study_id, c.objective.is_not(None), c.feasible.is_not(False)
    )
    best = connection.execute(known.order_by(order, c.number).limit(1)).first()
    return (best.objective, best.number) if best else None


def count_trials(connection: Connection, study_id: int) -> dict[State, int]:
    """Count the trials in each state that occurs."""
    c = trials.c
    counted = select(c.state, func.count()).where(c.study_id == study_id).group_by(c.state)
    return {state: count for state, count in connection.execute(counted)}  # noqa: C416
