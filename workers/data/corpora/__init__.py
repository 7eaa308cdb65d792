"""Corpora: bodies of text that language tasks are made of.

A corpus yields documents; `workers.data.corpora._parts` cuts them into training, validation and
test, and `workers.data.corpora._tokens` makes tokens of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from workers.data.hashing import hash_of


class Corpus(ABC):
    """A corpus' configuration, a frozen dataclass without knobs: all of it is structural."""

    needs_network: ClassVar[bool] = False
    """True if the documents come from elsewhere."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Yield the documents, always in this order; raises PluginError if they are missing."""

    def content(self) -> str:
        """Return a hash of the documents, or of their sources where that is quicker."""
        return hash_of(document.encode(errors="surrogatepass") for document in self.documents())
