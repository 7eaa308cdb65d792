"""Arrays of tokens in files of the user's cache, memory-mapped: a corpus, or a pool of games.

A file is a line of JSON with notes and a check, then the tokens. It is written aside and moved into
place, so that no process sees half of one, and processes that write at once leave the same file. A
file that is cut short or changed does not fit its check and is made anew.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaces.cache import write_aside

Numbers = NDArray[np.unsignedinteger[Any]]
DTYPES = ("uint8", "uint16", "uint32")
_ALIGNED = 64


class Stored(NamedTuple):
    """The content of a file."""

    notes: Mapping[str, Any]
    """JSON values."""
    arrays: Sequence[Numbers]
    """Arrays of one dtype out of DTYPES; each maps a part of the file."""


def write(path: Path, content: Stored) -> None:
    """Write the content where other processes find it; raises OSError if that fails."""
    write_aside(path, _head(content), *(array.data.cast("B") for array in content.arrays))


def read(path: Path) -> Stored | None:
    """Return the content; None if there is no such file, or if it is not whole."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with path.open("rb") as file:
            line = file.readline()
        head = json.loads(line)
        body = np.memmap(path, dtype=np.dtype(head["dtype"]), mode="c", offset=len(line))  # torch wants it writable
        ends = np.cumsum(head["sizes"])
        whole = len(body) == int(ends[-1]) and head["check"] == _check(head["notes"], [body])
        if whole and head["dtype"] in DTYPES:
            return Stored(head["notes"], np.split(body, ends[:-1]))
    return None


def digest_of(content: Stored) -> str:
    """Return SHA-256 of the content's notes, sizes and check."""
    return hashlib.sha256(_head(content)).hexdigest()


def _head(content: Stored) -> bytes:
    head = {
        "dtype": content.arrays[0].dtype.name,
        "sizes": [len(array) for array in content.arrays],
        "check": _check(content.notes, content.arrays),
        "notes": content.notes,
    }
    line = json.dumps(head).encode()
    return line + b" " * (-(len(line) + 1) % _ALIGNED) + b"\n"


def _check(notes: Mapping[str, Any], arrays: Sequence[Numbers]) -> int:
    check = zlib.crc32(json.dumps(notes).encode())
    for array in arrays:
        check = zlib.crc32(array.data.cast("B"), check)
    return check
