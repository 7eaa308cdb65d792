"""A file that tells whether the last launch of a study crashed or was ended from outside."""

from __future__ import annotations

import faulthandler
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self, final

from graft.launching.process.run_log import path_beside
from storage import file_of
from workers.numerics.native import cache_folder

_FATAL = "Fatal Python error: "


@final
class CrashRecord:
    """A file that the interpreter writes to when a fault inside it ends the process.

    SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT come from a trial's step or a library. A kill from
    outside, as when memory runs out, leaves no time to write, and is no trial's fault.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    @classmethod
    def of(cls, database: str, study: Mapping[str, Any]) -> Self:
        """Return the record of a study, by its row: beside a SQLite file, else in Graft's cache."""
        if file := file_of(database):
            return cls(Path(f"{file}.crash-{study['id']}"))
        return cls(cache_folder() / f"crash-{study['id']}-{study['created_at']:%Y%m%d%H%M%S%f}")

    @classmethod
    def of_service(cls, database: str) -> Self:
        """Return the record of the service of a database."""
        return cls(path_beside(database, "crash-service"))

    def read(self) -> str | None:
        """Return how the last launch crashed (`Segmentation fault`); None without a record."""
        with suppress(OSError):
            first = self._path.read_text(errors="replace").partition("\n")[0]
            return first.removeprefix(_FATAL) or None
        return None

    def clear(self) -> None:
        """Forget the last launch."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Forget the last launch and record a crash of this one, if the disk can be written."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("w")
            faulthandler.enable(self._file, all_threads=False)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._file:
            faulthandler.disable()
            self._file.close()
            self.clear()
