"""The processes that run the studies of a PostgreSQL database, and requests that they stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from sqlalchemy import Connection, select, text, update

from spaces.errors import StudyError
from storage.databases.database import StopRequests, StudyLocks, who_am_i
from storage.databases.postgres_reading import driver_of
from storage.schema import studies

_LOCK_CLASS = 0x67726166
"""First half of the advisory lock's key, `graf`; the second half is the study's id."""
_SERVICE = 0
"""In place of a study's id, which begin at 1: the lock of the service."""
_NAME_BYTES = 63
"""The most bytes of a session's name; the server cuts a longer one."""
_RELEASE_SECONDS = 5.0
"""Seconds that the server gets to end a session of ours that it does not know to be dead."""
_HOLDER = """
SELECT pid,
    coalesce(nullif(application_name, ''), 'another process') || coalesce(' at ' || host(client_addr), '') AS name
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = :class AND objid = :study AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_ANY_HOLDER = """
SELECT studies.name, application_name
FROM pg_locks JOIN pg_stat_activity USING (pid) LEFT JOIN studies ON studies.id = objid
WHERE locktype = 'advisory' AND classid = :class AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
LIMIT 1
"""


def session_name() -> str:
    """Return the name of this process's sessions, as the server shows it."""
    return who_am_i().encode()[:_NAME_BYTES].decode(errors="ignore")


@final
class AdvisoryLocks(StudyLocks):
    """A session's advisory locks: the server releases them when the connection ends, however."""

    def __init__(self, name: str) -> None:
        """`name` is the database's in errors."""
        self._name = name
        self._sessions: set[int] = set()
        """Server processes of lost writing connections; one may still hold our locks."""

    def add(self, connection: Connection) -> None:
        """Remember a connection as one of ours."""
        self._sessions.add(driver_of(connection).info.backend_pid)

    def lock(self, connection: Connection, study_id: int, study: str) -> None:
        self._lock(connection, study_id, f"study {study!r}")

    def unlock(self, connection: Connection, study_id: int, study: str) -> None:
        key = {"class": _LOCK_CLASS, "study": study_id}
        connection.execute(text("SELECT pg_advisory_unlock(:class, :study)"), key)

    def lock_service(self, connection: Connection) -> None:
        self._lock(connection, _SERVICE, f"the service of {self._name}")

    def service(self, connection: Connection) -> str | None:
        return self.holder(connection, _SERVICE, "")

    def _lock(self, connection: Connection, number: int, what: str) -> None:
        key = {"class": _LOCK_CLASS, "study": number}
        give_up = time.monotonic() + _RELEASE_SECONDS
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:class, :study)"), key):
            holder = connection.execute(text(_HOLDER), key).first()
            ours = holder and holder.pid in self._sessions and holder.name.startswith(session_name())
            if holder and (not ours or time.monotonic() > give_up):
                raise StudyError(f"{what} is being run by {holder.name}; stop it first")
            if holder:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": holder.pid})
                time.sleep(_RELEASE_SECONDS / 100)

    def holder(self, connection: Connection, study_id: int, study: str) -> str | None:
        row = connection.execute(text(_HOLDER), {"class": _LOCK_CLASS, "study": study_id}).first()
        return row.name if row else None

    def check_idle(self, connection: Connection) -> None:
        holder = connection.execute(text(_ANY_HOLDER), {"class": _LOCK_CLASS}).first()
        if holder:
            what = "the service" if holder[0] is None else f"study {holder[0]!r}"
            raise StudyError(f"{self._name}: {what} is being run by {holder[1]}; stop it first")


@final
class StopColumn(StopRequests):
    """`studies.stop_requested`."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        """`connect` makes a new connection that writes."""
        self._connect = connect

    def send(self, study_id: int) -> None:
        with self._connect() as connection, connection.begin():
            this = update(studies).where(studies.c.id == study_id)
            connection.execute(this.values(stop_requested=True))

    def is_sent(self, connection: Connection, study_id: int) -> bool:
        this = select(studies.c.stop_requested).where(studies.c.id == study_id)
        return bool(connection.scalar(this))

    def withdraw(self, connection: Connection, study_id: int) -> None:
        this = update(studies).where(studies.c.id == study_id)
        connection.execute(this.values(stop_requested=False))
