"""Requests to the one process that may write a SQLite file: files in a folder beside it.

A request is durable when `post` returns, and is taken in once: by the next process that may write the file, at once if
a service has it. Each is a file of its own, complete when it has its name, so that no two processes write one file.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import final

_REQUEST, _REFUSED = ".json", ".refused"
_KEPT_SECONDS = 3600.0
"""How long a refusal is kept for the process that asked, which may be gone."""


@final
class Mailbox:
    """A folder of requests, the oldest first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, text: str) -> str:
        """Leave a request; its name. Raises OSError if the disk does not take it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        name = f"{time.time_ns():020}-{uuid.uuid4().hex[:8]}"
        self._write(name + _REQUEST, text)
        return name

    def names(self) -> list[str]:
        """The requests that nobody took in yet, the oldest first."""
        with suppress(OSError):
            return sorted(path.stem for path in self._folder.iterdir() if path.suffix == _REQUEST)
        return []

    def read(self, name: str) -> str:
        """The text of a request."""
        return (self._folder / (name + _REQUEST)).read_text(encoding="utf-8")

    def is_pending(self, name: str) -> bool:
        """Whether nobody took the request in yet."""
        return (self._folder / (name + _REQUEST)).exists()

    def settle(self, name: str, refusal: str = "") -> None:
        """The request was taken in, and is committed; or it was refused, for a reason in one line."""
        if refusal:
            self._write(name + _REFUSED, refusal)
        (self._folder / (name + _REQUEST)).unlink(missing_ok=True)
        for path in self._folder.glob(f"*{_REFUSED}"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    path.unlink()

    def refusal(self, name: str) -> str:
        """Why a request that is no longer pending was refused, which is then forgotten; empty: it was not."""
        path = self._folder / (name + _REFUSED)
        if not path.exists():
            return ""
        text = path.read_text(encoding="utf-8")
        path.unlink(missing_ok=True)
        return text

    def _write(self, name: str, text: str) -> None:
        """Write a file that appears whole under its name, and is on the disk when this returns."""
        part = self._folder / f"{name}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._folder / name)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
