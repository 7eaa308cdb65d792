"""The user's cache: files that may be deleted at any time, and are made again when missed."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/graft`, else `~/.cache/graft`, else a private temporary folder."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "graft"
    try:
        return Path.home() / ".cache" / "graft"
    except RuntimeError:
        shared = Path(tempfile.gettempdir()) / f"graft-cache-{os.getuid()}"
        with suppress(OSError):
            shared.mkdir(mode=0o700)
        with suppress(OSError):
            status = shared.lstat()
            is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
            if is_own and not status.st_mode & 0o022:  # nobody else may write into it
                return shared
        return _make_folder()


@functools.cache
def _make_folder() -> Path:
    """Return a new private folder, the same for as long as this process runs."""
    return Path(tempfile.mkdtemp(prefix="graft-cache-"))


def write_aside(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file of these parts so that other processes find all or nothing; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)


def remember(key: str, compute: Callable[[], str]) -> str:
    """Return the text that `compute` gives, from the cache if it is known for this key."""
    name = hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()[:32]
    path = cache_folder() / "digests" / name
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    text = compute()
    with suppress(OSError):  # a home that cannot be written: it is computed anew next time
        write_aside(path, text.encode())
    return text
