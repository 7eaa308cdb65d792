"""Requests to the one process that may write a SQLite file: files in a folder beside it.

A request is durable when `post` returns, and is taken in once: by the next process that may write
the file, at once if a service has it. Each is a file of its own, complete when it has its name, so
that no two processes write one file. A request that no process can do is moved aside, with the
reason, so that no later process meets it.
"""

from __future__ import annotations

import os
import re
import stat
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from spaces.errors import MessageError
from storage.databases.disk import synchronise

_REQUEST, _REFUSED, _REASON = ".json", ".refused", ".reason"
"""Ends of the names of requests, of refused ones, and of the reasons."""
_KEPT_SECONDS = 3600.0
"""Seconds that a reason is kept for the process that asked, which may be gone."""
_MOST_REFUSED = 100
"""The most refused requests that are kept, the newest."""
LARGEST_REQUEST = 1 << 24
"""Bytes; a submission has a space and the sources of its plug-ins."""
_LONGEST_NAME = 100
_OWN_NAME = re.compile(r"[0-9]{20}-")


class Refused(NamedTuple):
    """A request that was moved aside."""

    name: str
    reason: str


@final
class Mailbox:
    """A folder of requests, the oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, text: str, mark: str = "") -> str:
        """Leave a request; return its name, ending in `mark`. Raises OSError if the disk fails."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
            synchronise(self._folder.parent)  # a power cut must not take the folder with its files
        # After the waiting ones, even if a clock was set back: a study's pause precedes its resume.
        known = [int(name.split("-")[0]) for name in self.names() if _OWN_NAME.match(name)]
        last = max(known, default=0)
        name = f"{max(time.time_ns(), last + 1):020}-{uuid.uuid4().hex[:8]}{mark}"
        self._write(name + _REQUEST, text)
        return name

    def names(self, mark: str = "") -> list[str]:
        """Return the pending requests whose names end in `mark`, the oldest first."""
        with suppress(OSError):
            paths = (path for path in self._folder.iterdir() if path.suffix == _REQUEST)
            return sorted(path.stem for path in paths if path.stem.endswith(mark))
        return []

    def read(self, name: str) -> str:
        """Return a request's text; FileNotFoundError if withdrawn, MessageError if not Graft's."""
        path = self._folder / (name + _REQUEST)
        status = path.lstat()
        problem = "a request to the queue cannot be read"
        if not stat.S_ISREG(status.st_mode) or len(name) > _LONGEST_NAME:
            raise MessageError(f"{problem}: it is no file that Graft left")
        if status.st_size > LARGEST_REQUEST:
            raise MessageError(f"{problem}: it has more than {LARGEST_REQUEST:,} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise MessageError(f"{problem}: {error}") from None

    def is_pending(self, name: str) -> bool:
        """Return True until the request is taken in."""
        return (self._folder / (name + _REQUEST)).exists()

    def settle(self, name: str, refusal: str = "") -> None:
        """Remove a request that is committed, or was refused for a reason in one line."""
        if refusal:
            self._write(name + _REASON, refusal)
        with suppress(FileNotFoundError):
            (self._folder / (name + _REQUEST)).unlink()
            synchronise(self._folder)  # one that came back with the power would be done too late
        for path in self._folder.glob(f"*{_REASON}"):
            with suppress(OSError):
                is_old = path.stat().st_mtime < time.time() - _KEPT_SECONDS
                if is_old and not os.path.lexists(path.with_suffix(_REFUSED)):
                    path.unlink()

    def put_aside(self, name: str, reason: str) -> None:
        """Move a request that cannot be done out of the way, then keep the reason, if it fits."""
        (self._folder / (name + _REQUEST)).rename(self._folder / (name + _REFUSED))
        with suppress(OSError):
            self._write(name + _REASON, reason)
        for old in sorted(self._folder.glob(f"*{_REFUSED}"))[:-_MOST_REFUSED]:
            with suppress(OSError):
                old.with_suffix(_REASON).unlink(missing_ok=True)
                old.unlink()

    def refused(self) -> list[Refused]:
        """Return the requests that were moved aside, the oldest first."""
        with suppress(OSError):
            names = sorted(path.stem for path in self._folder.iterdir() if path.suffix == _REFUSED)
            return [Refused(name, self._read_reason(name)) for name in names]
        return []

    def refusal(self, name: str) -> str:
        """Return, once, why a finished request was refused; empty if it was done."""
        if os.path.lexists(self._folder / (name + _REFUSED)):
            return self._read_reason(name)
        path = self._folder / (name + _REASON)
        if not path.exists():
            return ""
        text = path.read_text(encoding="utf-8")
        path.unlink(missing_ok=True)
        return text

    def _read_reason(self, name: str) -> str:
        try:
            return (self._folder / (name + _REASON)).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return "the reason was not kept"

    def _write(self, name: str, text: str) -> None:
        """Write a file that appears whole under its name, and is on the disk on return."""
        part = self._folder / f"{name}.part"
        # A reason may quote anything.
        with part.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._folder / name)
        synchronise(self._folder)
