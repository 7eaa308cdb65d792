"""Digests of the files that trials read, and the differences of a file that has changed.

A file is read once for as long as its size, its times and its place on the disk stay: digests of
large files are kept in the user's cache, so that a launch does not read gigabytes twice. A changed
time alone costs another reading.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from spaces.cache import remember
from spaces.errors import PluginError

DIGITS = 16
"""Digits of a SHA-256 that are stored; no two contents agree in so many."""
_LARGE = 1 << 20
"""Bytes from which on a digest is cached: smaller files are read faster than looked up."""
_SETTLED = 2_000_000_000
"""Nanoseconds since a file's last edit: within a clock's tick a second one leaves no trace."""

_known: dict[str, tuple[str, str]] = {}
"""Path -> the key of a file's state, and its digest then."""


class FileState(NamedTuple):
    """A file at the moment when it was read."""

    digest: str
    """The first DIGITS digits of its content's SHA-256."""
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds since 1970; 0 for data in no file."""

    def describe(self) -> str:
        """Return `1,234 bytes, modified 2026-11-24 11:54:03 UTC, SHA-256 9f86d081884c7d65`."""
        time = datetime.fromtimestamp(self.modified // 1_000_000_000, UTC)
        modified = f"modified {time:%Y-%m-%d %H:%M:%S} UTC, " if self.modified else ""
        return f"{self.size:,} bytes, {modified}SHA-256 {self.digest}"


class Selection(NamedTuple):
    """The files of a folder that count."""

    ends: tuple[str, ...] = ("",)
    """The ends of their names."""
    without: frozenset[str] = frozenset()
    """Names of folders that are left out."""

    def list(self, folder: Path) -> list[Path]:
        """Return the files in a folder and the folders in it, sorted."""
        return sorted(
            path
            for path in folder.rglob("*")
            if path.name.endswith(self.ends)
            and self.without.isdisjoint(path.relative_to(folder).parts)
            and path.is_file()
        )


ALL_FILES = Selection()


@dataclass(frozen=True, kw_only=True)
class Data:
    """A file, or the files of a folder, as they were when a study first read them."""

    path: str
    """Their path; empty for data without a place on a disk, as a data set of a hub."""
    state: FileState
    """The file's; a folder's has a digest of names and digests, summed sizes, the newest time."""
    files: Mapping[str, FileState] = field(default_factory=dict[str, FileState])
    """Name in the folder -> file; empty for a file."""
    selection: Selection = ALL_FILES

    @property
    def digest(self) -> str:
        """The digest of the content."""
        return self.state.digest

    def describe_change(self, name: str, now: Data | None) -> str:
        """Return the difference from `now` in a line; `name` is that of the file or folder."""
        if now is None:
            state = self.state.describe()
            return f"{name} ({self.path}) is not there any more, or cannot be read; it had {state}"
        old, new = ({inner: file.digest for inner, file in data.files.items()} for data in (self, now))
        different = sorted(inner for inner in {*old, *new} if old.get(inner) != new.get(inner))
        if not different:
            return f"{name} had {self.state.describe()}, now it has {now.state.describe()}"
        first, more = different[0], len(different) - 1
        before, after = self.files.get(first), now.files.get(first)
        was = f"had {before.describe()}" if before else "was not there"
        others = f" (and {more} more file{'s' * (more > 1)} of it)" if more else ""
        is_now = f"has {after.describe()}" if after else "is gone"
        return f"{name}/{first}{others} {was}, now it {is_now}"

    def to_json(self) -> dict[str, Any]:
        """Return the data as JSON values."""
        return {
            "path": self.path,
            "state": list(self.state),
            "files": {name: list(state) for name, state in self.files.items()},
            "ends": list(self.selection.ends),
            "without": sorted(self.selection.without),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        return cls(
            path=str(values["path"]),
            state=FileState(*values["state"]),
            files={name: FileState(*state) for name, state in values["files"].items()},
            selection=Selection(tuple(values["ends"]), frozenset(values["without"])),
        )


def read_data(path: Path, selection: Selection = ALL_FILES) -> Data:
    """Return a file or folder with digests; OSError if unreadable, PluginError without files."""
    path = path.absolute()
    if not path.is_dir():
        return Data(path=str(path), state=state_of(path), selection=selection)
    files = {inner.relative_to(path).as_posix(): state_of(inner) for inner in selection.list(path)}
    if not files:
        ends = f" that end in {', '.join(selection.ends)}" if any(selection.ends) else ""
        raise PluginError(f"{path} must be a file, or a folder of files{ends}")
    digest = hashlib.sha256()
    for name, state in files.items():
        digest.update(f"{name}\0{state.digest}\0".encode(errors="surrogateescape"))
    whole = FileState(
        digest.hexdigest()[:DIGITS],
        sum(state.size for state in files.values()),
        max(state.modified for state in files.values()),
    )
    return Data(path=str(path), state=whole, files=files, selection=selection)


def state_of(path: Path) -> FileState:
    """Return a file's digest, size and time; raises OSError if it cannot be read."""
    status = path.stat()
    parts = path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino
    key = "\0".join(map(str, parts))
    known = _known.get(str(path))
    if known and known[0] == key:
        digest = known[1]
    elif not _is_settled(status):
        digest = _read_digest(path)
    else:
        is_large = status.st_size >= _LARGE
        digest = remember(key, lambda: _read_digest(path)) if is_large else _read_digest(path)
        _known[str(path)] = key, digest
    return FileState(digest, status.st_size, status.st_mtime_ns)


def digest_of(content: bytes) -> str:
    """Return the first DIGITS digits of a content's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _read_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _is_settled(status: os.stat_result) -> bool:
    return max(status.st_mtime_ns, status.st_ctime_ns) < time.time_ns() - _SETTLED
