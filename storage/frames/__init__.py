"""The reading side: typed Polars frames over a connection that cannot write.

__init__.py   the reader of a database: its studies, and queries of the user's own
study.py      the reader of one study
paths.py      `optimizer.learning_rate` in a condition on trials
answers.py    SELECTs sent over the connection, and their answers
columns.py    the columns of the frames, and frames made from rows
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self, final

import polars as pl

from spaces.errors import StudyError
from storage import migrations, tokens
from storage.databases import find_database
from storage.databases.database import Database, ReadingConnection
from storage.databases.mailbox import Refused
from storage.frames.answers import Answers, quote
from storage.frames.columns import STUDIES
from storage.frames.study import StudyReader
from storage.queue_entries import QueueEntry, read_entries
from storage.store_request import REVOCATION, StoreRequest
from storage.tokens import Token


def open_reader(url: str, seconds: float | None = None) -> Reader:
    """Return a database's reader, with a limit of `seconds`; StorageError if it is not Graft's."""
    database = find_database(url)
    reader = Reader(database, database.reader(seconds))
    try:
        reader.check()
    except BaseException:
        reader.close()
        raise
    return reader


@final
class Reader:
    """Reads one database. Nothing sent through it can change a row."""

    def __init__(self, database: Database, reading: ReadingConnection) -> None:
        self.database = database
        self._answers = Answers(database, reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection."""
        self._answers.reading.close()

    def check(self) -> None:
        """Raise StorageError unless the database has the schema that this code reads."""
        with self._answers.transaction() as connection:
            migrations.check(connection, self.database.name)

    def studies(self) -> pl.DataFrame:
        """Return every study, oldest first; columns STUDIES."""
        return self._answers.read(f"SELECT {', '.join(STUDIES)} FROM studies ORDER BY id", STUDIES)

    def study(self, name: str) -> StudyReader:
        """Return the reader of a study, with its row as of now; StudyError with the choices."""
        these = f"SELECT {', '.join(STUDIES)} FROM studies WHERE name = {quote(name)}"
        known = self._answers.read(these, STUDIES)
        if known.is_empty():
            names = ", ".join(self.studies()["name"])
            there = f"there are {names}" if names else "there is none yet"
            raise StudyError(f"study {name!r} does not exist; {there}")
        return StudyReader(self._answers, known.row(0, named=True))

    def queue(self) -> list[QueueEntry]:
        """Return the service's queue: open entries in its order, then the others, newest first."""
        with self._answers.transaction() as connection:
            return read_entries(connection)

    def service(self) -> str | None:
        """Return the process that holds the lock of the database's service, or None."""
        with self._answers.transaction() as connection:
            return self.database.locks.service(connection)

    def tokens(self) -> list[Token]:
        """Return the tokens of the service, the oldest first, revoked ones included."""
        with self._answers.transaction() as connection:
            return tokens.read(connection)

    def refused_requests(self) -> list[Refused]:
        """Return the requests moved aside because no process could do them, oldest first."""
        mailbox = self.database.mailbox
        return mailbox.refused() if mailbox else []

    def find_token(self, digest: str) -> Token | None:
        """Return the token of a digest, if it was not revoked and has not expired.

        A revocation counts from its request on, even if no process takes that in yet.
        """
        mailbox, revoked = self.database.mailbox, set[str]()
        with self._answers.transaction() as connection:
            for name in mailbox.names(REVOCATION) if mailbox else ():
                assert mailbox
                with suppress(OSError, StudyError):
                    request = StoreRequest.from_json(mailbox.read(name))
                    revoked.update([request.study] if request.action == "revoke_token" else ())
            return tokens.find(connection, digest, revoked)

    def query(self, sql: str) -> pl.DataFrame:
        """Return the answer to one SELECT of the user's; StorageError if refused or too large.

        PostgreSQL gives the types. SQLite's come from the values; a column without any has the type
        of the trials' or metrics' column of that name, else text.
        """
        return self._answers.infer(sql)

    def rows(self, sql: str) -> Iterator[tuple[Any, ...]]:
        """Return the answer to a SELECT of ours as the driver has it, whatever the rows hold."""
        return self._answers.rows(sql)

    def listen(self, topic: str) -> int | None:
        """Return a descriptor that is readable once a topic rang (`ReadingConnection.listen`)."""
        with self.database.readable_errors():
            return self._answers.reading.listen(topic)

    def hush(self) -> None:
        """Reset the descriptor of `listen`; raises AwayError if the connection is lost."""
        with self.database.readable_errors():
            self._answers.reading.hush()

    def moment(self) -> AbstractContextManager[None]:
        """Open a transaction in which everything read is of one moment."""
        return self._answers.moment()
