"""The differences of the two databases: connections, locks, stop requests, texts of errors."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import polars as pl
from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from spaces.errors import StorageError
from storage.databases.mailbox import Mailbox

MetricRow = tuple[int, int, str, str, str, float | None]
"""The columns of metrics: trial_id, step, name, variant, condition, value."""

Insert = sqlite.Insert | postgresql.Insert
"""An INSERT that knows ON CONFLICT; both databases spell it alike."""


QUEUE_TOPIC = "graft_queue"
"""The topic of `ring` and `listen` for the queue of the service."""


def study_topic(study_id: int) -> str:
    """Return the topic of `ring` and `listen` for the trials of a study."""
    return f"graft_study_{study_id}"


class AwayError(StorageError):
    """The server is away or going: what was sent last may have been done, or not."""


class Rows(NamedTuple):
    """The answer to a SELECT: names, types (None: to be inferred), and the driver's cursor."""

    names: Sequence[str]
    types: Sequence[pl.DataType | None]
    cursor: Any


class ReadingConnection(ABC):
    """A connection that cannot write, whatever is sent over it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def close(self) -> None:
        """Give the connection back."""
        self.connection.close()

    @abstractmethod
    def select(self, sql: str) -> Rows:
        """Run one SELECT, as it stands; any other statement is refused."""

    @abstractmethod
    def moment(self) -> AbstractContextManager[None]:
        """Read everything inside the block as of one moment."""

    @abstractmethod
    def parameter(self, study_id: int, path: str) -> str:
        """Return SQL for a drawn parameter, `optimizer.learning_rate`: number, truth or text."""

    @abstractmethod
    def knob(self, study_id: int, path: str) -> str | None:
        """Return SQL for a configuration's value, or a plug-in's name; None for an unknown path."""

    @abstractmethod
    def listen(self, topic: str) -> int | None:
        """Return a file descriptor that is readable once a `Database.ring` of the topic commits.

        `hush` makes it wait again. None if the database does not notify. A notification may be
        lost, too: it ends a wait early, and no more.
        """

    @abstractmethod
    def hush(self) -> None:
        """Take in notifications; raises AwayError if the connection is lost."""


class StudyLocks(ABC):
    """The process that runs each study: one at most, until it ends."""

    @abstractmethod
    def lock(self, connection: Connection, study_id: int, study: str) -> None:
        """Make this process the study's only controller; raises StudyError naming the other."""

    @abstractmethod
    def unlock(self, connection: Connection, study_id: int, study: str) -> None:
        """Let other processes run the study; this process keeps its other studies."""

    @abstractmethod
    def lock_service(self, connection: Connection) -> None:
        """Make this process the database's only service; raises StudyError naming the other."""

    @abstractmethod
    def service(self, connection: Connection) -> str | None:
        """Return the process that is the service, by a reading connection, or None."""

    @abstractmethod
    def holder(self, connection: Connection, study_id: int, study: str) -> str | None:
        """Return the process that runs the study, by a reading connection, or None."""

    @abstractmethod
    def check_idle(self, connection: Connection) -> None:
        """Raise StudyError if any study is being run, by a connection of `writer`."""


class StopRequests(ABC):
    """Requests to the controller of a study, in whatever process it runs, to stop."""

    @abstractmethod
    def send(self, study_id: int) -> None:
        """Ask the controller of the study to stop."""

    @abstractmethod
    def is_sent(self, connection: Connection, study_id: int) -> bool:
        """Return True if a stop was requested since control of the study was last taken."""

    @abstractmethod
    def withdraw(self, connection: Connection, study_id: int) -> None:
        """Forget an earlier request."""


class Database(ABC):
    """A database of studies. It holds at most one connection, of `writer` or of `reader`."""

    name: str
    """The database in errors, without a password."""
    locks: StudyLocks
    stops: StopRequests
    mailbox: Mailbox | None
    """The mailbox for requests to the one process that writes; None if any process may write."""

    @abstractmethod
    def writer(self) -> Connection:
        """Return the writing connection, on a database that is durable; creates an empty one.

        Raises StorageError if it cannot be written, is not durable, or has another writer.
        """

    @abstractmethod
    def check_place(self, connection: Connection) -> None:
        """Raise StorageError, after a rescue, if the last commit is not where readers look."""

    @abstractmethod
    def reader(self, seconds: float | None = None) -> ReadingConnection:
        """Return a connection that cannot write; a `select` on it may take `seconds`."""

    @abstractmethod
    def snapshot(self) -> Connection:
        """Return a connection that cannot write; a transaction of it sees one moment."""

    @abstractmethod
    def damage(self) -> list[str]:
        """Return a line for each fault of the database itself; StorageError if there is none."""

    @abstractmethod
    def insert(self, table: Table) -> Insert:
        """Return INSERT INTO table, in this database's dialect."""

    @abstractmethod
    def insert_metrics(self, connection: Connection, rows: Sequence[MetricRow]) -> None:
        """Write metrics without SQLAlchemy, which costs more than they do; known keys stay."""

    @abstractmethod
    def ring(self, connection: Connection, topic: str) -> None:
        """Wake the topic's listeners once the transaction is committed, if the database can."""

    @abstractmethod
    def explain(self, error: BaseException) -> str | None:
        """Return an error of the driver in one line, or None if it is not the driver's."""

    @abstractmethod
    def is_away(self, error: BaseException) -> bool:
        """Return True if an error says that the database may answer another connection later."""

    @abstractmethod
    def close(self) -> None:
        """Give up the locks; the connection is closed before."""

    @contextmanager
    def readable_errors(self) -> Generator[None]:
        """Turn the driver's errors into StorageError; a broken constraint is our bug and passes."""
        try:
            yield
        except IntegrityError:
            raise
        except MemoryError as error:
            raise StorageError(f"{self.name}: the answer does not fit into memory") from error
        except UnicodeEncodeError as error:  # an argument of the command line that was no UTF-8
            text = error.object[error.start]
            raise StorageError(f"{self.name}: a text holds {text!r}, no character") from error
        except Exception as error:
            cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
            line = self.explain(cause)
            if line is None:
                raise
            kind = AwayError if self.is_away(cause) else StorageError
            raise kind(f"{self.name}: {' '.join(line.split())}") from error


def who_am_i() -> str:
    """Return the name of this process for the next one that wants its lock."""
    return f"process {os.getpid()} on {socket.gethostname()}"
