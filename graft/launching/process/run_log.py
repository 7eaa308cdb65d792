"""A log of the runs of a database's studies: when each began, what went wrong, how it ended.

The file lies beside a SQLite database, else in each machine's cache of Graft. It is opened for each
line of JSON, so that several processes can write it; a line that is written while another process
cuts the file short may be lost.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, final

from storage import file_of
from workers.numerics.native import cache_folder

_LONGEST = 1 << 20
"""Bytes of a file above which it is cut to a quarter."""
_LOGGERS = ("graft.launching", "graft.pool", "search", "storage", "workers")


def path_beside(database: str, kind: str) -> Path:
    """Return the path of a database's file: beside a SQLite file, else in Graft's cache."""
    if file := file_of(database):
        return Path(f"{file}.{kind}")
    return cache_folder() / f"{kind}-{hashlib.sha256(database.encode()).hexdigest()[:16]}"


class LogLine(NamedTuple):
    """A line of the log."""

    time: str
    """UTC, ISO 8601."""
    study: str
    text: str


@final
class RunLog:
    """The lines of one database."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of(cls, database: str) -> Self:
        """Return the log of a database, given its URL."""
        return cls(path_beside(database, "log"))

    def write(self, study: str, text: str) -> None:
        """Add a line; a disk that cannot be written is ignored."""
        entry = LogLine(datetime.now(UTC).isoformat(timespec="seconds"), study, " ".join(text.split()))
        with suppress(OSError):
            # A database's own folder is never made: it is there, or was removed on purpose.
            if self._path.parent == cache_folder():
                self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(json.dumps(entry._asdict()) + "\n")
                size = file.tell()
            if size > _LONGEST:
                # The newest quarter is kept.
                kept = self._path.read_bytes()[-_LONGEST // 4 :].partition(b"\n")[2]
                part = self._path.with_name(self._path.name + ".part")
                part.write_bytes(kept)
                os.replace(part, self._path)

    def read(self, study: str, lines: int) -> list[LogLine]:
        """Return the last lines of a study, the oldest first; none if there is no file."""
        entries: list[LogLine] = []
        with suppress(OSError):
            for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # a full disk leaves half a line
                    entry: Any = json.loads(line)
                    entries.append(LogLine(*(str(entry[name]) for name in LogLine._fields)))
        return [line for line in entries if line.study == study][-lines:]

    @contextmanager
    def recording(self, study: str) -> Generator[None]:
        """Add the warnings of this thread and those it starts, and an error that ends the block."""
        if _handler not in logging.getLogger(_LOGGERS[0]).handlers:
            for name in _LOGGERS:
                logging.getLogger(name).addHandler(_handler)
        token = _recording.set((self, study))
        try:
            yield
        except BaseException as error:
            self.write(study, f"ended by an error: {error or type(error).__name__}")
            raise
        finally:
            _recording.reset(token)


_recording: contextvars.ContextVar[tuple[RunLog, str] | None] = contextvars.ContextVar("graft_run_log", default=None)
"""The log and the study of a thread's warnings. A thread begins with the context of its starter."""


@final
class _Handler(logging.Handler):
    """Writes the warnings of the study that a thread works for."""

    def emit(self, record: logging.LogRecord) -> None:
        if recording := _recording.get():
            log, study = recording
            log.write(study, record.getMessage())
        # Python itself no longer shows the warnings of a logger that has a handler.
        if logging.lastResort and not logging.getLogger().handlers:
            logging.lastResort.handle(record)


_handler = _Handler(logging.WARNING)
