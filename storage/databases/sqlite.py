"""One file, one writer: SQLite with a write-ahead log that is synchronised at every commit.

SQLite 3.7.0-3.51.2 can corrupt a write-ahead log when two connections write or checkpoint at the
same instant, so one connection of one process writes, guarded by a lock on the file, and every
other opens the file read-only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import final

from sqlalchemy import Connection, Table, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import NullPool

from spaces.errors import StorageError
from spaces.plugins import canonical_json
from storage.databases.database import Database, Insert, MetricRow, StopRequests, StudyLocks
from storage.databases.file_lock import UNKNOWN, FileLock
from storage.databases.mailbox import Mailbox
from storage.databases.sqlite_file import SqliteFile
from storage.databases.sqlite_reading import LARGEST_VALUE, SqliteReading, driver_of
from storage.schema import VERSION_TABLE

_PAGES = 4096
"""Pages of a copy between looks at Ctrl-C."""
_MOST_FAULTS = 20
_INSERT_METRICS = """
INSERT INTO metrics (trial_id, step, name, variant, condition, value) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_SERVICE = "service"
_WORDS = {
    "disk is full": "no space left on the disk; what was committed before stays",
    "disk i/o error": "the disk refuses to read or write (full, or broken?); what was committed before stays",
    "not a database": "this file is not a Graft database",
    "disk image is malformed": "the file is damaged; restore it from a copy",
    "readonly database": "the database cannot be written over this connection, or its file is read-only",
    "unable to open": "the file cannot be opened; check that it exists and that its folder can be written",
    "not authorized": "only SELECT is allowed here",
    "authorization denied": "only SELECT is allowed here",
    "not reading": "only SELECT is allowed here",
    "interrupted": "it was interrupted, or took longer than it may; ask for less, or give it more --seconds",
    "string or blob too big": f"a value has more than {LARGEST_VALUE:,} bytes",
    "database is locked": "another program has locked the file and does not let go of it (a shell, a copy?); end it",
    "one statement at a time": "only one statement at a time is allowed here",
}


@final
class FileLocks(StudyLocks):
    """The lock of the file, for all its studies; its note names those that run, and a service."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._noted: list[str] = []

    def lock(self, connection: Connection, study_id: int, study: str) -> None:
        """Note the study; `writer` took the lock."""
        self._note([*(note for note in self._noted if note != f"study {study}"), f"study {study}"])

    def unlock(self, connection: Connection, study_id: int, study: str) -> None:
        self._note([note for note in self._noted if note != f"study {study}"])

    def lock_service(self, connection: Connection) -> None:
        """Note the service; `writer` took the lock."""
        self._note([_SERVICE, *(note for note in self._noted if note != _SERVICE)])

    def service(self, connection: Connection) -> str | None:
        return self._find(_SERVICE)

    def holder(self, connection: Connection, study_id: int, study: str) -> str | None:
        return self._find(f"study {study}")

    def _note(self, noted: list[str]) -> None:
        self._noted = noted
        self._lock.note(", ".join(noted) or "no study")

    def _find(self, wanted: str) -> str | None:
        """Return the lock holder's note if it names `wanted` or cannot be read, else None."""
        text = self._lock.holder()
        if text is None or text == UNKNOWN:
            return text
        noted = text.rpartition("(")[2].removesuffix(")").split(", ")
        return text if wanted in noted else None

    def check_idle(self, connection: Connection) -> None:
        """Do nothing: no other process has the lock that `writer` took."""


@final
class StopFiles(StopRequests):
    """Files beside the database, as only one process may write into it."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def send(self, study_id: int) -> None:
        self._file.stop_file(study_id).touch()

    def is_sent(self, connection: Connection, study_id: int) -> bool:
        return self._file.stop_file(study_id).exists()

    def withdraw(self, connection: Connection, study_id: int) -> None:
        self._file.stop_file(study_id).unlink(missing_ok=True)


@final
class Sqlite(Database):
    """A file on a local disk."""

    def __init__(self, file: str) -> None:
        if not file or Path(file).name == ":memory:":
            need = "needs a file that outlives the process"
            raise StorageError(f"storage sqlite:// {need}; use sqlite:///FILE")
        try:
            path = Path(file).resolve()  # SQLite's log is beside the file, not a link
        except (OSError, RuntimeError):  # the second up to Python 3.12
            problem = "its symbolic links go in a circle; name a file"
            raise StorageError(f"{file}: {problem}") from None
        self._file = SqliteFile(path)
        self._lock = FileLock(self._file.path)
        self.name = str(self._file.path)
        self.locks = FileLocks(self._lock)
        self.stops = StopFiles(self._file)
        self.mailbox = Mailbox(Path(f"{self._file.path}.queue"))

    def writer(self) -> Connection:
        self._file.check_folder()
        with self.readable_errors():
            self._lock.take("opening")
        engine = create_engine(
            "sqlite://", creator=self._file.writer, poolclass=NullPool, json_serializer=canonical_json
        )
        # It takes the write lock at once, and lets table definitions be part of the transaction.
        begin = "BEGIN IMMEDIATE"
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
        try:
            with self.readable_errors():
                connection = engine.connect()
        except StorageError:
            self.close()
            raise
        if not self._file.is_open(self._lock.identity):
            connection.close()
            self.close()
            raise StorageError(f"{self.name} was replaced while it was opened; launch again")
        return connection

    def check_place(self, connection: Connection) -> None:
        loss = self._file.loss()
        if loss is None:
            return
        try:
            rescue = self._file.rescue(driver_of(connection))
        except (OSError, sqlite3.Error) as error:
            lost = f"what it held is lost: {self.explain(error)}"
            raise StorageError(f"{loss} under this run, and {lost}") from error
        self._file.remove_log()
        hint = "move it to where the database is to be"
        if self._file.path.parent.is_dir():
            hint = f"`mv {rescue} {self.name}` puts it back"
        raise StorageError(
            f"{loss} under this run, which stops; all that it held is in {rescue}: {hint}, and the study can be resumed"
        )

    def reader(self, seconds: float | None = None) -> SqliteReading:
        self._file.check_exists()
        engine = create_engine("sqlite://", creator=self._file.reader, poolclass=NullPool)
        with self.readable_errors():
            return SqliteReading(engine.connect(), seconds)

    def snapshot(self) -> Connection:
        self._file.check_exists()
        engine = create_engine("sqlite://", creator=self._file.reader, poolclass=NullPool)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        with self.readable_errors():
            return engine.connect()

    def damage(self) -> list[str]:
        self._file.check_exists()
        with self.readable_errors(), closing(self._file.reader()) as connection:
            try:
                rows = connection.execute(f"PRAGMA integrity_check({_MOST_FAULTS})").fetchall()
                orphans = connection.execute("PRAGMA foreign_key_check").fetchmany(_MOST_FAULTS)
            except sqlite3.DatabaseError as error:
                if "malformed" not in str(error):
                    raise
                return [f"the file is damaged: {error}"]
        faults = [f"the file is damaged: {' '.join(line.split())}" for (line,) in rows if line != "ok"]
        for table, _, other, _ in orphans:
            faults.append(f"a row of {table} refers to a row of {other} that is not there")
        return faults

    def copy_pages(self, target: Path) -> None:
        """Write the file of one moment to `target`, page by page, while others read and write."""
        self._file.check_exists()
        with closing(self._file.reader()) as old, closing(sqlite3.connect(target, isolation_level=None)) as new:
            old.execute("BEGIN")
            named = old.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,))
            if not named.fetchone():
                problem = f"it has no table {VERSION_TABLE}"
                raise StorageError(f"{self.name} is not a Graft database: {problem}")
            old.backup(new, pages=_PAGES)

    def settle(self) -> None:
        """Leave the file without a log beside it, readable also where nothing can be written."""
        with self.readable_errors(), closing(sqlite3.connect(self._file.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")

    def insert(self, table: Table) -> Insert:
        return sqlite.insert(table)

    def insert_metrics(self, connection: Connection, rows: Sequence[MetricRow]) -> None:
        connection.exec_driver_sql(_INSERT_METRICS, list(rows))

    def ring(self, connection: Connection, topic: str) -> None:
        """Do nothing: waiting processes look again by themselves."""

    def explain(self, error: BaseException) -> str | None:
        if isinstance(error, OSError):
            return f"cannot write {error.filename or 'here'}: {error.strerror or error}"
        if not isinstance(error, sqlite3.Error | sqlite3.Warning):
            return None
        text = str(error)
        return next((words for sign, words in _WORDS.items() if sign in text.lower()), text)

    def is_away(self, error: BaseException) -> bool:
        """Return False: a file is there, or broken."""
        return False

    def close(self) -> None:
        self._lock.release()
