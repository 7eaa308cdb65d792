"""A writing connection that comes back: transactions are made again, whole, when a server has gone away.

What a transaction does must come to the same when it is made twice: its commit may have been done and only the answer
lost. A server that is away for longer than an hour ends the run; what it had committed stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar, final

from sqlalchemy import Connection, select

from spaces.errors import GraftError, StudyError
from storage.database import AwayError, Database
from storage.schema import studies

AWAY_SECONDS = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

_log = logging.getLogger("graft.storage")
Answer = TypeVar("Answer")


@final
class Session:
    """One connection at a time, and the studies locked over it. Safe to call from several threads, one at a time."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self._turn = threading.Lock()
        self._locked: dict[int, tuple[str, int]] = {}
        """Study -> its name, and its fence when it was locked."""
        self._over: GraftError | None = None
        """Another process has one of them now, or the server was away for too long."""

    def close(self) -> None:
        """Give back the connection and the locks."""
        with self._turn:
            self._hang_up()
            self._database.close()

    def lock(self, study_id: int, act: Callable[[Connection], int]) -> int:
        """Become the study's only controller; `act` counts its fence up, which is returned.

        Raises StudyError if another process is.
        """
        name = self.transact(lambda connection: _name_of(connection, study_id))

        def locked(connection: Connection) -> int:
            self._database.lock_study(connection, study_id, name)
            return act(connection)

        self._locked[study_id] = name, self.transact(locked)
        return self._locked[study_id][1]

    def transact(self, act: Callable[[Connection], Answer]) -> Answer:
        """What `act` gives, committed, or nothing of it: what was committed before stays.

        While no study is locked, a server that goes away is an error at once.
        """
        with self._turn:
            while True:
                if self._over:
                    raise self._over
                try:
                    with self._database.errors_in_words(), self._connection.begin():
                        return act(self._connection)
                except AwayError as error:
                    if not self._locked:
                        raise
                    self._come_back(error)

    def _come_back(self, error: AwayError) -> None:
        """Connect anew, in pauses each twice the last one, and lock the same studies; StudyError if another has."""
        since, pause = time.monotonic(), FIRST_PAUSE
        _log.warning("%s; training goes on, and the database is tried again for an hour", error)
        while time.monotonic() < since + AWAY_SECONDS:
            self._hang_up()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._connection = self._database.writer()
                self._lock_again()
            except AwayError:
                continue
            except GraftError as refused:
                self._over = refused
                self._hang_up()
                raise
            _log.warning("%s answers again, after %.1f s", self._database.name, time.monotonic() - since)
            return
        self._over = AwayError(f"{error}; no answer in {AWAY_SECONDS / 60:.0f} minutes")
        raise self._over from None

    def _lock_again(self) -> None:
        with self._database.errors_in_words(), self._connection.begin():
            for study_id, (name, fence) in self._locked.items():
                self._database.lock_study(self._connection, study_id, name)
                if self._connection.scalar(select(studies.c.fence).where(studies.c.id == study_id)) != fence:
                    raise StudyError(f"study {name!r} was taken over by another process")

    def _hang_up(self) -> None:
        with suppress(Exception):  # what is broken cannot even be closed
            self._connection.close()


def _name_of(connection: Connection, study_id: int) -> str:
    return connection.execute(select(studies.c.name).where(studies.c.id == study_id)).scalar_one()
