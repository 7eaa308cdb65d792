"""Corpora: bodies of text that language tasks are made of.

A corpus gives documents; `workers.data.corpora._parts` cuts them into training, validation and test, and
`workers.data.corpora._tokens` makes tokens of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from workers.data.hashing import hash_of


class Corpus(ABC):
    """A corpus' configuration, a frozen dataclass without knobs: all of it is structural."""

    needs_network: ClassVar[bool] = False
    """Whether the documents come from elsewhere."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Return the documents, always in the same order; raises PluginError, one line, if they are not to be had."""

    def content(self) -> str:
        """Return a hash of the documents, or of all that they are made from where that is quicker."""
        return hash_of(document.encode(errors="surrogatepass") for document in self.documents())
