"""Hashes of the sources of data, to find the data again in the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

SEPARATOR = b"\xff"
"""Separates the pieces: a byte that UTF-8 never has."""


def hash_of(pieces: Iterable[bytes]) -> str:
    """Return SHA-256 of the pieces, in hexadecimal digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        digest.update(SEPARATOR)
    return digest.hexdigest()
