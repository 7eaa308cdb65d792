"""A writing connection that reconnects: a transaction is made again if the server goes away.

A commit may have been done and only its answer lost; the client cannot know. So every transaction
must have the same effect when it is made twice (`controlled_study` says how). A server that is away
for longer than an hour ends the run; its commits stay.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar, final

from sqlalchemy import Connection, bindparam, select

from spaces.errors import GraftError, StudyError
from storage.databases.database import AwayError, Database
from storage.schema import studies

AWAY_SECONDS = 3600.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
_FENCE = select(studies.c.fence).where(studies.c.id == bindparam("study")).with_for_update(read=True)
"""Built once, as every transaction of a study asks for it."""

_log = logging.getLogger("graft.storage")
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@final
class Session:
    """One connection at a time, and the studies locked over it. Threads take turns."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.database = database
        self._connection = connection
        self._turn = threading.Lock()
        self._locked: dict[int, tuple[str, int]] = {}
        """Study -> its name, and its fence when it was locked."""
        self._is_service = False
        self._failure: GraftError | None = None
        """The reason not to write: another process has a study, or the server was away long."""

    def close(self) -> None:
        """Give back the connection and the locks."""
        with self._turn:
            self._hang_up()
            self.database.close()

    def lock(self, study_id: int, act: Callable[[Connection], int]) -> int:
        """Make this process the study's only controller and return the fence that `act` returns.

        `act` raises the study's fence; it returns 0 if nothing else is written under the lock.
        Raises StudyError if another process is the controller.
        """
        query = select(studies.c.name).where(studies.c.id == study_id)
        name: str = self.transact(lambda connection: connection.execute(query).scalar_one())

        def lock(connection: Connection) -> int:
            self.database.locks.lock(connection, study_id, name)
            return act(connection)

        self._locked[study_id] = name, self.transact(lock)
        return self._locked[study_id][1]

    def unlock(self, study_id: int) -> None:
        """Give one study back; the others stay locked."""
        name, _ = self._locked[study_id]
        self.transact(lambda connection: self.database.locks.unlock(connection, study_id, name))
        del self._locked[study_id]

    def lock_service(self) -> None:
        """Make this process the database's only service; raises StudyError if another one is."""
        self.transact(self.database.locks.lock_service)
        self._is_service = True

    def transact(self, act: Callable[[Connection], Answer]) -> Answer:
        """Run `act` in a transaction and return its result once committed; an error undoes it.

        While nothing is locked, a server that goes away is an error at once.
        """
        with self._turn:
            first_failure: float | None = None
            while True:
                if self._failure:
                    raise self._failure
                try:
                    with self.database.readable_errors(), self._connection.begin():
                        answer = act(self._connection)
                except AwayError as error:
                    if not (self._locked or self._is_service):
                        raise
                    first_failure = first_failure or time.monotonic()
                    self._reconnect(error, first_failure)
                    continue
                except Exception:
                    self._check_place()  # a file that is gone is why: what the driver says of it is no help
                    raise
                self._check_place()
                return answer

    def write(self, study_id: int, act: Callable[[Connection], Answer]) -> Answer:
        """Run `act` as `transact` does; StudyError if another process has taken control."""

        def act_if_in_control(connection: Connection) -> Answer:
            self._check_control(connection, study_id)
            return act(connection)

        return self.transact(act_if_in_control)

    def _check_place(self) -> None:
        """Raise StorageError, and write no more, if commits are not where the next one looks."""
        try:
            self.database.check_place(self._connection)
        except GraftError as lost:  # final: nobody would find what is written from now on
            self._failure = lost
            raise

    def _reconnect(self, error: AwayError, since: float) -> None:
        """Connect again, with doubling pauses, and lock the same studies; StudyError if taken.

        The hour counts from `since`, the first failure of the same transaction.
        """
        pause = FIRST_PAUSE
        _log.warning("%s; training goes on, and the database is tried again for an hour", error)
        while time.monotonic() < since + AWAY_SECONDS:
            self._hang_up()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                self._connection = self.database.writer()
                self._lock_again()
            except AwayError:
                continue
            except GraftError as refused:  # final: a later call must not write either
                self._failure = refused
                self._hang_up()
                raise
            seconds = time.monotonic() - since
            _log.warning("%s answers again, after %.1f s", self.database.name, seconds)
            return
        self._failure = AwayError(f"{error}; no answer in {AWAY_SECONDS / 60:.0f} minutes")
        raise self._failure from None

    def _lock_again(self) -> None:
        """Lock the studies again, unless another controller, even an ended one, came meanwhile."""
        with self.database.readable_errors(), self._connection.begin():
            if self._is_service:
                self.database.locks.lock_service(self._connection)
            for study_id, (name, _) in self._locked.items():
                self.database.locks.lock(self._connection, study_id, name)
                self._check_control(self._connection, study_id)

    def _check_control(self, connection: Connection, study_id: int) -> None:
        """Raise StudyError unless the study has our fence; until the commit nobody can raise it."""
        name, fence = self._locked[study_id]
        if connection.scalar(_FENCE, {"study": study_id}) != fence:
            raise StudyError(f"study {name!r} was taken over by another process")

    def _hang_up(self) -> None:
        with suppress(Exception):  # what is broken cannot even be closed
            self._connection.close()


class HasSession(Protocol):
    """An object that transactions are made through."""

    @property
    def session(self) -> Session: ...


Holder = TypeVar("Holder", bound=HasSession)


def transaction(
    method: Callable[Concatenate[Holder, Connection, Arguments], Answer],
) -> Callable[Concatenate[Holder, Arguments], Answer]:
    """Run the method, which only reads and leaves `self` alone, in one transaction of its own."""

    @wraps(method)
    def transact(self: Holder, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        def act(connection: Connection) -> Answer:
            return method(self, connection, *arguments, **named)

        return self.session.transact(act)

    return transact
