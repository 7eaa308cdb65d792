"""One process writes a SQLite file: a lock on it under all its names, and a note of its holder.

The lock is on the inode. Symbolic links, hard links, other mounts of a folder and relative paths
lead to the same one, and the note may be removed without letting a second process in.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple, final

from spaces.errors import StudyError
from storage.databases.database import who_am_i

_LOCK_SECONDS = 0.5
"""Longer than `FileLock.holder`, or a second launch that is about to be refused, keeps the lock."""
UNKNOWN = "another process"
"""The holder of the lock if the note is gone."""


class Identity(NamedTuple):
    """The identity of a file, whatever its name."""

    device: int
    inode: int

    @classmethod
    def at(cls, path: Path) -> Identity | None:
        """Return the identity of the file at the path; None if there is no file."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        return cls(status.st_dev, status.st_ino)


class _Descriptors:
    """Descriptors of database files, one for each file, which this process never closes.

    SQLite's own locks are POSIX locks: they go when a process closes any descriptor of the file,
    also an unrelated one (sqlite.org/howtocorrupt.html, section 2.2). So a lock is given back by
    unlocking.
    """

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self.held: set[tuple[int, Identity]] = set()
        """Locked (process, file)s. A fork has its parent's descriptors, not its locks."""
        self._open: dict[tuple[int, Identity], int] = {}

    def of(self, path: Path, flags: int) -> tuple[int, Identity]:
        """Return a descriptor of the path's file, opened by these flags if there is none yet."""
        known = Identity.at(path)
        if known and (os.getpid(), known) in self._open:
            return self._open[os.getpid(), known], known
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        status = os.fstat(descriptor)
        identity = Identity(status.st_dev, status.st_ino)
        return self._open.setdefault((os.getpid(), identity), descriptor), identity


_descriptors = _Descriptors()


@final
class FileLock:
    """The lock of a database file; a note beside it, the lock before 0.2.0, names the holder."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._path = Path(f"{database}.lock")
        self._note: int | None = None
        self._file = -1
        self.identity: Identity | None = None
        """The file that is locked."""

    def take(self, text: str) -> None:
        """Take the lock and note the holder and its purpose `text`; StudyError names another one.

        An empty file is made if there is none.
        """
        self._note = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOCK_SECONDS
        try:
            while not (_try_lock(self._note) and self._try_file()):
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"{self._database} is being written by {self._read_note()}; stop it first, "
                        "or use another --storage"
                    )
                time.sleep(_LOCK_SECONDS / 10)
            self.note(text)
        except BaseException:
            self.release()
            raise

    def note(self, text: str) -> None:
        """Write the note: this process, and its purpose."""
        assert self._note is not None
        os.ftruncate(self._note, 0)
        os.pwrite(self._note, f"{who_am_i()} ({text})\n".encode(), 0)

    def holder(self) -> str | None:
        """Return the lock holder's note; None if the lock is free. Takes a shared lock briefly."""
        with _descriptors.turn:
            file, identity = _descriptors.of(self._database, os.O_RDONLY)
            if (os.getpid(), identity) not in _descriptors.held:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return self._read_note()
                fcntl.flock(file, fcntl.LOCK_UN)
                return None
        return self._read_note()

    def release(self) -> None:
        """Give the lock up, if this process has it."""
        with _descriptors.turn:
            # In a fork the lock is the parent's.
            if self.identity and (os.getpid(), self.identity) in _descriptors.held:
                fcntl.flock(self._file, fcntl.LOCK_UN)
                _descriptors.held.remove((os.getpid(), self.identity))
            self.identity = None
        if self._note is not None:
            # The file stays: removing it would let two processes lock two files of one name.
            os.close(self._note)
            self._note = None

    def _try_file(self) -> bool:
        """Lock the file at the path, if no process has it and it is still there then."""
        with _descriptors.turn:
            file, identity = _descriptors.of(self._database, os.O_RDWR | os.O_CREAT)
            # The whole process shares the lock's descriptor: a second lock would succeed, too.
            if (os.getpid(), identity) in _descriptors.held or not _try_lock(file):
                return False
            # The file may be replaced between the opening and the locking.
            if Identity.at(self._database) != identity:
                fcntl.flock(file, fcntl.LOCK_UN)
                return False
            _descriptors.held.add((os.getpid(), identity))
            self._file, self.identity = file, identity
            return True

    def _read_note(self) -> str:
        try:
            return self._path.read_text().strip() or UNKNOWN
        except OSError:
            return UNKNOWN


def _try_lock(file: int) -> bool:
    """Take the lock, if no process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
