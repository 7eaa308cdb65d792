"""The rows of workers: which are alive, and until when they have trials, by the database's clock.

Each function is a step of a transaction that its caller opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, literal_column, select, update

from spaces.records import WorkerStatus
from storage.clock import Now
from storage.databases.database import Insert
from storage.schema import workers

_MINE = (workers.c.study_id == bindparam("study"), workers.c.fence == bindparam("own"))
_EXPIRE = (
    update(workers).where(*_MINE, workers.c.state == "running", workers.c.lease_until < Now()).values(state="lost")
)
_LOST = select(workers.c.id).where(*_MINE, workers.c.state == "lost").order_by(workers.c.id)
_OTHERS = (
    update(workers)
    .where(workers.c.study_id == bindparam("study"), workers.c.fence < bindparam("own"), workers.c.state == "running")
    .values(state="lost")
)
_UPDATED = ("host", "device", "log", "state", "steps", "room", "heartbeat_at", "lease_until")


def renew(
    connection: Connection, insert: Insert, study_id: int, fence: int, seen: Sequence[WorkerStatus], seconds: float
) -> None:
    """Renew leases for `seconds` from when each worker was last seen; an expired one stays expired.

    A lost worker with a new lease would go on with trials that others were given meanwhile.
    """
    rows = [
        {**beat._asdict(), "study_id": study_id, "fence": fence, "age": -beat.seconds, "left": seconds - beat.seconds}
        for beat in seen
    ]
    if not rows:
        return
    names = ("study_id", "fence", "host", "device", "log", "state", "steps", "room")
    seen_at, lease_until = Now(bindparam("age")), Now(bindparam("left"))
    statement = insert.values(
        {name: bindparam(name) for name in names}
        | {"id": bindparam("worker"), "heartbeat_at": seen_at, "lease_until": lease_until}
    )
    again = statement.on_conflict_do_update(
        index_elements=[workers.c.study_id, workers.c.id],
        set_={name: literal_column(f"excluded.{name}") for name in _UPDATED},
        # A worker of an earlier controller, or a lost one, keeps its row: others run its trials.
        where=(workers.c.fence == literal_column("excluded.fence")) & (workers.c.state == "running"),
    )
    connection.execute(again, rows)


def expire(connection: Connection, study_id: int, fence: int) -> list[str]:
    """Mark workers with expired leases as lost; return all of this controller, earlier ones too."""
    connection.execute(_EXPIRE, {"study": study_id, "own": fence})
    return list(connection.scalars(_LOST, {"study": study_id, "own": fence}))


def orphan(connection: Connection, study_id: int, fence: int) -> None:
    """Mark the workers of earlier controllers as lost: the process they exchange with is gone."""
    connection.execute(_OTHERS, {"study": study_id, "own": fence})
