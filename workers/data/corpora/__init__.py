"""Corpora: bodies of text that language tasks are made of.

A corpus gives documents; `workers.data.corpora._parts` cuts them into training, validation and test, and
`workers.data.corpora._tokens` makes tokens of them.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

SEPARATOR = b"\xff"
"""What stands between documents where several are hashed as one: a byte that UTF-8 never has."""


class Corpus(ABC):
    """A corpus' configuration, a frozen dataclass without knobs: all of it is structural."""

    needs_network: ClassVar[bool] = False
    """Whether the documents come from elsewhere."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """The documents, always in the same order; raises PluginError, one line, if they are not to be had."""

    def content(self) -> str:
        """A hash of the documents, or of all that they are made from where that is quicker."""
        return hash_of(document.encode(errors="surrogatepass") for document in self.documents())


def hash_of(pieces: Iterable[bytes]) -> str:
    """SHA-256 of the pieces, in hexadecimal digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        digest.update(SEPARATOR)
    return digest.hexdigest()
