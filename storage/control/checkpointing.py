"""The rows of checkpoints: two files with the state of each running trial, as one may be damaged.

Each function is a step of its caller's transaction, for trials whose fence was checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, bindparam, exists, select, update
from sqlalchemy import delete as sql_delete

from spaces.records import Checkpoint
from storage.clock import Now
from storage.control.history import Past
from storage.databases.database import Insert
from storage.schema import checkpoints, trial_id, trials

KEPT = 2
_UPDATED = ("fence", "path", "place", "sha256", "past", "known", "created_at")
_NEWEST_FIRST = (checkpoints.c.fence.desc(), checkpoints.c.step.desc())
_KEPT = (
    select(checkpoints.c.step).where(checkpoints.c.trial_id == bindparam("trial")).order_by(*_NEWEST_FIRST).limit(KEPT)
)
_DELETE_OLDER = sql_delete(checkpoints).where(
    checkpoints.c.trial_id == bindparam("trial"), checkpoints.c.step.not_in(_KEPT)
)
_FURTHER = ~exists().where(checkpoints.c.trial_id == bindparam("trial"), checkpoints.c.step >= bindparam("at"))
_FORGIVE = update(trials).where(trials.c.id == bindparam("trial"), trials.c.deaths > 0, _FURTHER).values(deaths=0)
"""A trial that gets further than it ever was did not crash its workers."""


def write(
    connection: Connection, insert: Insert, study_id: int, saved: Sequence[Checkpoint], pasts: Mapping[int, Past]
) -> None:
    """Write the files of trials' states, and delete older ones; `pasts`: number -> its history."""
    rows = [
        {
            "trial_id": trial_id(study_id, checkpoint.number),
            "step": checkpoint.step,
            "fence": checkpoint.fence,
            "path": checkpoint.path,
            "place": checkpoint.row,
            "sha256": checkpoint.sha256,
            "past": pasts.get(checkpoint.number, Past()).to_json(),
            "known": checkpoint.controller_state,
        }
        for checkpoint in saved
    ]
    if not rows:
        return
    connection.execute(_FORGIVE, [{"trial": row["trial_id"], "at": row["step"]} for row in rows])
    fresh = {name: insert.excluded[name] for name in _UPDATED}
    statement = insert.values(created_at=Now())
    connection.execute(statement.on_conflict_do_update(index_elements=["trial_id", "step"], set_=fresh), rows)
    connection.execute(_DELETE_OLDER, [{"trial": row["trial_id"]} for row in rows])


def read(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Checkpoint, ...]]:
    """Map ids of trials that have any to the checkpoints they can resume from, newest first."""
    c = checkpoints.c
    number = select(trials.c.number).where(trials.c.id == c.trial_id).scalar_subquery()
    these = select(c.trial_id, number, c.fence, c.step, c.path, c.place, c.sha256, c.known).where(c.trial_id.in_(ids))
    by_trial: dict[int, tuple[Checkpoint, ...]] = {}
    for trial, *row in connection.execute(these.order_by(c.trial_id, *_NEWEST_FIRST)):
        by_trial[trial] = (*by_trial.get(trial, ()), Checkpoint(*row))
    return by_trial


def read_pasts(connection: Connection, ids: Sequence[int]) -> dict[int, Past]:
    """Map ids of trials to the history of each at its furthest checkpoint."""
    c = checkpoints.c
    these = select(c.trial_id, c.past).where(c.trial_id.in_(ids)).order_by(c.step)
    return {trial: Past.from_json(past) for trial, past in connection.execute(these)}


def read_paths(connection: Connection, study_id: int) -> frozenset[str]:
    """Return the files that any trial of the study can resume from."""
    first, last = trial_id(study_id, 0), trial_id(study_id + 1, 0)
    mine = (checkpoints.c.trial_id >= first, checkpoints.c.trial_id < last)
    these = select(checkpoints.c.path).where(*mine)
    return frozenset(connection.scalars(these.distinct()))


def delete(connection: Connection, ids: Iterable[int]) -> None:
    """Delete the checkpoints of trials that ended."""
    rows = [{"trial": trial} for trial in ids]
    if rows:
        these = sql_delete(checkpoints).where(checkpoints.c.trial_id == bindparam("trial"))
        connection.execute(these, rows)
