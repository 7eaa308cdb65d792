"""The file of a SQLite database, its connections, and a check that it is still there."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import final
from urllib.parse import quote

from spaces.errors import StorageError
from storage.databases.disk import synchronise
from storage.databases.file_lock import Identity

_BUSY_SECONDS = 30.0
_BESIDE = ("", "-wal", "-shm")
"""Ends of the names of a database's files: pages, the log of commits, the log's index."""
_NETWORK = re.compile(r"(fuse\.)?(afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|s3fs|sshfs|smb\w*)")
_SETTINGS = (
    "PRAGMA synchronous=FULL",  # NORMAL can lose a committed trial when the power fails
    "PRAGMA foreign_keys=ON",
    "PRAGMA cache_size=-65536",  # 64 MiB: the pages that running trials append to stay in memory
    "PRAGMA wal_autocheckpoint=8192",  # 32 MiB: pages written many times reach the file once
)


@final
class SqliteFile:
    """A file on a local disk: checks of its place, and connections to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = [Path(f"{path}{end}") for end in _BESIDE]
        self._opened: dict[Path, Identity | None] = {}
        """The files that the writing connection has open."""

    def check_exists(self) -> None:
        """Raise StorageError if there is no such file, or its folder cannot hold one."""
        if not self.path.exists():
            problem = "there is no such database; `search launch` creates one"
            raise StorageError(f"{self.path}: {problem}")
        self.check_folder()

    def check_folder(self) -> None:
        """Raise StorageError if the file cannot be in this folder."""
        folder = self.path.parent
        if self.path.is_dir():
            raise StorageError(f"{self.path} is a folder; the storage must be a file")
        if self.path.exists() and not self.path.is_file():
            raise StorageError(f"{self.path} is a device or a pipe; the storage must be a file")
        if not folder.is_dir():
            raise StorageError(f"{self.path}: the folder {folder} does not exist")
        kind = filesystem_of(folder)
        if _NETWORK.fullmatch(kind or ""):
            repair = "use a local disk, or PostgreSQL"
            raise StorageError(f"{self.path} is on a network file system ({kind}); {repair}")

    def writer(self) -> sqlite3.Connection:
        """Return a connection that writes, durably; the file is made if there is none.

        The caller holds the lock. Raises StorageError for a file of several names: SQLite would
        look for its log beside another one.
        """
        names = self.path.stat().st_nlink
        if names > 1:
            raise StorageError(
                f"{self.path} has {names} names (hard links), and its log would lie beside one of them alone; "
                f"keep one name: `find / -xdev -samefile {self.path}` lists them"
            )
        if self.path in mount_points():
            problem = "is mounted by itself, without its log; mount its folder instead"
            raise StorageError(f"{self.path} {problem}")
        connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            problem = "this file system cannot hold a write-ahead log; use a local disk"
            raise StorageError(f"{self.path}: {problem}")
        for setting in _SETTINGS:
            connection.execute(setting)
        connection.execute("SELECT count(*) FROM sqlite_master")  # opens the log, too
        self._opened = {path: Identity.at(path) for path in self._files}
        return connection

    def reader(self) -> sqlite3.Connection:
        """Return a connection that cannot write."""
        address = f"file:{quote(str(self.path))}?mode=ro"
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only=ON")
        return connection

    def is_open(self, identity: Identity | None) -> bool:
        """Return True if the writing connection has this file open."""
        return self._opened.get(self.path) == identity

    def loss(self) -> str | None:
        """Return what happened to the writing connection's files, in words; None if nothing.

        The log counts as the file does: until its pages are moved to the file, commits are in it
        alone. SQLite itself notices neither in this mode, and goes on writing to nameless files.
        """
        for path in self._files[:2]:
            identity = Identity.at(path)
            if identity != self._opened[path]:
                return f"{path} was {'replaced' if identity else 'deleted'}"
        return None

    def rescue(self, connection: sqlite3.Connection) -> Path:
        """Write all that the connection sees, committed, to a new database beside this one.

        The new file is on the disk on return. Without the folder, it goes into a new one among
        temporary files, which nobody else may read. Raises OSError or sqlite3.Error if it cannot be
        written.
        """
        folder = self.path.parent if self.path.parent.is_dir() else Path(tempfile.mkdtemp(prefix="graft-rescue-"))
        names = (folder / f"{self.path.name}.rescue{number or ''}" for number in count())
        target = next(path for path in names if not path.exists())
        part = Path(f"{target}.part")
        try:
            with closing(sqlite3.connect(part, isolation_level=None)) as new:
                connection.backup(new)
                new.execute("PRAGMA journal_mode=DELETE")  # readable even without writing
            synchronise(part)
            os.replace(part, target)
            synchronise(folder)
            if folder != self.path.parent:
                synchronise(folder.parent)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return target

    def remove_log(self) -> None:
        """Remove the log of a file that is gone: SQLite would take it for the next file's."""
        for path in self._files[1:]:
            if self._opened[path] and Identity.at(path) == self._opened[path]:
                path.unlink(missing_ok=True)

    def stop_file(self, study_id: int) -> Path:
        """Return the file whose existence asks the controller of a study to stop."""
        return Path(f"{self.path}.stop-{study_id}")


def mount_points(mounts: Path = Path("/proc/self/mountinfo")) -> set[Path]:
    """Return the mount points of file systems, folders and files; empty without a mount table."""
    if not mounts.exists():
        return set()
    escaped = [line.split()[4] for line in mounts.read_text().splitlines()]
    octal = re.compile(r"\\([0-7]{3})")
    return {Path(octal.sub(lambda match: chr(int(match[1], 8)), path)) for path in escaped}


def filesystem_of(folder: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of `folder`'s file system (`ext4`, `nfs4`); None without a mount table."""
    if not mounts.exists():
        return None
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2] == wanted:
            return after.split()[0]
    return None
