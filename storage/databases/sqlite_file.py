"""The file of a SQLite database, its connections, and the lock file beside it."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from pathlib import Path
from typing import NoReturn, final
from urllib.parse import quote

from spaces.errors import StorageError, StudyError
from storage.databases.database import who_am_i

_BUSY_SECONDS = 30.0
_LOCK_SECONDS = 0.5
"""Longer than `FileLock.holder`, or a second launch that is about to be refused, keeps the lock."""
_NETWORK = re.compile(r"(fuse\.)?(afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|s3fs|sshfs|smb\w*)")
_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL can lose a committed trial when the power fails
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-65536",  # 64 MiB: the pages that running trials append to stay in memory
    "PRAGMA wal_autocheckpoint=8192",  # 32 MiB: pages written many times reach the file once
)


@final
class SqliteFile:
    """A file on a local disk: whether it may be used, and connections to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check_exists(self) -> None:
        """Raise StorageError if there is no such file, or its folder cannot hold one."""
        if not self.path.exists():
            raise StorageError(f"{self.path}: there is no such database; `search launch` creates one")
        self.check_folder()

    def check_folder(self) -> None:
        """Raise StorageError if the file cannot be in this folder."""
        folder = self.path.parent
        if self.path.is_dir():
            raise StorageError(f"{self.path} is a folder; the storage must be a file")
        if not folder.is_dir():
            raise StorageError(f"{self.path}: the folder {folder} does not exist")
        kind = filesystem_of(folder)
        if _NETWORK.fullmatch(kind or ""):
            raise StorageError(f"{self.path} is on a network file system ({kind}); use a local disk, or PostgreSQL")

    def writer(self) -> sqlite3.Connection:
        """A connection that writes, durably; the file is made if there is none. Its caller holds the lock."""
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StorageError(f"{self.path}: this file system cannot hold a write-ahead log; use a local disk")
        for setting in _SETTINGS:
            connection.execute(setting)
        return connection

    def reader(self) -> sqlite3.Connection:
        """A connection that cannot write."""
        address = f"file:{quote(str(self.path))}?mode=ro"
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only=ON")
        return connection

    def stop_file(self, study_id: int) -> Path:
        """The file whose existence asks the controller of a study to stop."""
        return Path(f"{self.path}.stop-{study_id}")


@final
class FileLock:
    """The lock file of a database: one process may write the database, and the file says which."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = Path(f"{database}.lock")
        self._lock: int | None = None

    def take(self, text: str) -> None:
        """Take the lock and note who has it, and for what; StudyError that names the process that has it."""
        self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(self._lock):
            if time.monotonic() > deadline:
                self.release()
                self._refuse()
            time.sleep(_LOCK_SECONDS / 10)
        self.note(text)

    def note(self, text: str) -> None:
        """Write into the lock file who has the lock, and for what."""
        assert self._lock is not None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{who_am_i()} ({text})\n".encode(), 0)

    def holder(self) -> str | None:
        """What the process that has the lock wrote; None if it is free, which takes it, shared, for an instant."""
        if not self._path.exists():
            return None
        with self._path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return lock.read().strip()
        return None

    def release(self) -> None:
        """Give the lock up, if this process has it."""
        if self._lock is not None:
            os.close(self._lock)  # the file stays: removing it would let two processes lock two files of one name
            self._lock = None

    def _refuse(self) -> NoReturn:
        holder = self._path.read_text().strip() or "another process"
        raise StudyError(f"{self._database} is being written by {holder}; stop it first, or use another --storage")


def _try_lock(lock: int) -> bool:
    """Take the lock, if no process has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
