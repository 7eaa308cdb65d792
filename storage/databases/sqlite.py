"""One file, one writer: SQLite with a write-ahead log that is synchronised at every commit.

SQLite 3.7.0-3.51.2 can corrupt a write-ahead log when two connections write or checkpoint at the same instant, so one
connection of one process writes, guarded by a lock file, and every other opens the file read-only.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from sqlalchemy import URL, Connection, Table, create_engine, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import NullPool

from spaces.errors import StorageError, StudyError
from spaces.plugins import canonical_json
from storage.databases.database import Database, Insert, MetricRow, Rows, who_am_i
from storage.schema import VERSION_TABLE

_BUSY_SECONDS = 30.0
_LARGEST_VALUE = 1 << 26
"""Bytes of a value that a reader takes or makes; a configuration has thousands."""
_PAGES = 4096
"""Pages of a copy between looks at Ctrl-C."""
_MOST_FAULTS = 20
_OPERATIONS = 100_000
"""SQLite's own operations, a few milliseconds of them, between looks at the clock and at Ctrl-C."""
_LOCK_SECONDS = 0.5
"""Longer than `holder`, or a second launch that is about to be refused, keeps the lock."""
_NETWORK = re.compile(r"(fuse\.)?(afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|s3fs|sshfs|smb\w*)")
_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL can lose a committed trial when the power fails
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-65536",  # 64 MiB: the pages that running trials append to stay in memory
    "PRAGMA wal_autocheckpoint=8192",  # 32 MiB: pages written many times reach the file once
)
_INSERT_METRICS = """
INSERT INTO metrics (trial_id, step, name, variant, condition, value) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
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
    "string or blob too big": f"a value has more than {_LARGEST_VALUE:,} bytes",
    "one statement at a time": "only one statement at a time is allowed here",
}
_ACTING = ("load_extension", "fts3_tokenizer")
_INTROSPECTION = ("table_info", "table_list", "index_list", "index_info", "foreign_key_list")


class Sqlite(Database):
    """A file on a local disk."""

    def __init__(self, url: URL) -> None:
        if not url.database or url.database == ":memory:":
            raise StorageError("storage sqlite:// needs a file that outlives the process; use sqlite:///FILE")
        self._path = Path(url.database).absolute()
        self._lock: int | None = None
        self._seconds = math.inf
        self._deadline = math.inf
        self.name = str(self._path)

    def writer(self) -> Connection:
        self._check_folder()
        self._take_lock("opening")
        engine = create_engine(
            "sqlite://", creator=self._connect_writer, poolclass=NullPool, json_serializer=canonical_json
        )
        event.listen(engine, "begin", _begin)
        try:
            with self.readable_errors():
                return engine.connect()
        except StorageError:
            self.close()
            raise

    def reader(self, seconds: float | None = None) -> Connection:
        self._seconds = math.inf if seconds is None else seconds
        self._check_exists()
        engine = create_engine("sqlite://", creator=self._connect_reader, poolclass=NullPool)
        with self.readable_errors():
            connection = engine.connect()
            driver = _driver(connection)
            driver.set_authorizer(_authorize_reading)
            driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            driver.set_progress_handler(lambda: time.monotonic() > self._deadline, _OPERATIONS)
            return connection

    def snapshot(self) -> Connection:
        self._check_exists()
        engine = create_engine("sqlite://", creator=self._connect_reader, poolclass=NullPool)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        with self.readable_errors():
            return engine.connect()

    def damage(self) -> list[str]:
        self._check_exists()
        with self.readable_errors(), closing(self._connect_reader()) as connection:
            try:
                found = connection.execute(f"PRAGMA integrity_check({_MOST_FAULTS})").fetchall()
                orphans = connection.execute("PRAGMA foreign_key_check").fetchmany(_MOST_FAULTS)
            except sqlite3.DatabaseError as error:
                if "malformed" not in str(error):
                    raise
                return [f"the file is damaged: {error}"]
        pages = [line for (line,) in found if line != "ok"]
        return [
            *(f"the file is damaged: {' '.join(line.split())}" for line in pages),
            *(f"a row of {table} refers to a row of {other} that is not there" for table, _, other, _ in orphans),
        ]

    def check_idle(self, connection: Connection) -> None:
        """The lock that `writer` took covers all studies of the file."""

    def copy_pages(self, target: Path) -> None:
        """Write the file, as of one moment, to `target`, page by page, while others read and write."""
        self._check_exists()
        with closing(self._connect_reader()) as old, closing(sqlite3.connect(target, isolation_level=None)) as new:
            old.execute("BEGIN")
            if not old.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchone():
                raise StorageError(f"{self.name} is not a Graft database: it has no table {VERSION_TABLE}")
            old.backup(new, pages=_PAGES)

    def settle(self) -> None:
        """Leave the file in one piece: without a log beside it, readable also where nothing can be written."""
        with self.readable_errors(), closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")

    def insert(self, table: Table) -> Insert:
        return sqlite.insert(table)

    def insert_metrics(self, connection: Connection, rows: Sequence[MetricRow]) -> None:
        connection.exec_driver_sql(_INSERT_METRICS, list(rows))

    def lock_study(self, connection: Connection, study_id: int, study: str) -> None:
        """The file's own lock covers all its studies; only note which one is being run."""
        self._write_holder(f"study {study}")

    def holder(self, connection: Connection, study_id: int, study: str) -> str | None:
        """The process that holds the file's lock for this study. A free lock is taken, shared, for an instant."""
        path = Path(f"{self._path}.lock")
        if not path.exists():
            return None
        with self.readable_errors(), path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock.read().strip()
                return text if text.endswith(f"(study {study})") else None
        return None

    def request_stop(self, study_id: int) -> None:
        with self.readable_errors():
            self._stop_file(study_id).touch()

    def stop_requested(self, connection: Connection, study_id: int) -> bool:
        return self._stop_file(study_id).exists()

    def withdraw_stop(self, connection: Connection, study_id: int) -> None:
        self._stop_file(study_id).unlink(missing_ok=True)

    def select(self, connection: Connection, sql: str) -> Rows:
        self._deadline = time.monotonic() + self._seconds
        cursor = _driver(connection).execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return Rows(names, [None] * len(names), cursor)

    def parameter(self, connection: Connection, study_id: int, path: str) -> str:
        return f"""json_extract(params, '$."{path}"')"""

    def explain(self, error: BaseException) -> str | None:
        if isinstance(error, OSError):
            return f"cannot write {error.filename or 'here'}: {error.strerror or error}"
        if not isinstance(error, sqlite3.Error | sqlite3.Warning):
            return None
        text = str(error)
        return next((words for sign, words in _WORDS.items() if sign in text.lower()), text)

    def is_away(self, error: BaseException) -> bool:
        """Never: a file is there, or broken."""
        return False

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)  # the file stays: removing it would let two processes lock two files of one name
            self._lock = None

    def _check_exists(self) -> None:
        if not self._path.exists():
            raise StorageError(f"{self.name}: there is no such database; `search launch` creates one")
        self._check_folder()

    def _check_folder(self) -> None:
        folder = self._path.parent
        if self._path.is_dir():
            raise StorageError(f"{self.name} is a folder; the storage must be a file")
        if not folder.is_dir():
            raise StorageError(f"{self.name}: the folder {folder} does not exist")
        kind = filesystem_of(folder)
        if _NETWORK.fullmatch(kind or ""):
            raise StorageError(f"{self.name} is on a network file system ({kind}); use a local disk, or PostgreSQL")

    def _take_lock(self, text: str) -> None:
        path = Path(f"{self._path}.lock")
        with self.readable_errors():
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(self._lock):
            if time.monotonic() > deadline:
                self.close()
                self._refuse(path)
            time.sleep(_LOCK_SECONDS / 10)
        self._write_holder(text)

    def _refuse(self, lock: Path) -> NoReturn:
        holder = lock.read_text().strip() or "another process"
        raise StudyError(f"{self.name} is being written by {holder}; stop it first, or use another --storage")

    def _write_holder(self, text: str) -> None:
        assert self._lock is not None
        with self.readable_errors():
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{who_am_i()} ({text})\n".encode(), 0)

    def _stop_file(self, study_id: int) -> Path:
        return Path(f"{self._path}.stop-{study_id}")

    def _connect_writer(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StorageError(f"{self.name}: this file system cannot hold a write-ahead log; use a local disk")
        for setting in _SETTINGS:
            connection.execute(setting)
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        address = f"file:{quote(str(self._path))}?mode=ro"
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only=ON")
        return connection


def _try_lock(lock: int) -> bool:
    """Take the lock, if no process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _begin(connection: Connection) -> None:
    """Take the write lock at once, and let table definitions be part of the transaction."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _authorize_reading(action: int, first: str | None, second: str | None, *more: Any) -> int:
    """Allow what a SELECT does. ATTACH, VACUUM INTO and most PRAGMAs could touch files even over a read-only file."""
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    if action == sqlite3.SQLITE_FUNCTION and second in _ACTING:
        return sqlite3.SQLITE_DENY
    allowed = action in reading or (action == sqlite3.SQLITE_PRAGMA and first in _INTROSPECTION)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _driver(connection: Connection) -> sqlite3.Connection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def filesystem_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The type of the file system that holds `folder` (`ext4`, `nfs4`); None where the system has no mount table."""
    if not mounts.exists():
        return None
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None
