"""Tokenizers: how text becomes whole numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from spaces.plugins import canonical_json, config_of


class Encoder(ABC):
    """A tokenizer that has seen its corpus."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of distinct tokens, 0 .. size - 1."""

    @abstractmethod
    def encode(self, text: str) -> Sequence[int]:
        """Return the tokens of a text; what it has no token for is left out."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class HasFile(Encoder):
    """An encoder that other programs can load, as a `tokenizer.json` of Hugging Face's tokenizers."""

    @abstractmethod
    def file(self) -> tuple[str, str]:
        """Return the file's text, with one more token as its last, and what this is called."""


class Tokenizer(ABC):
    """A tokenizer's configuration, a frozen dataclass without knobs: all of it is structural."""

    @abstractmethod
    def learn(self, documents: Iterable[str]) -> str:
        """Learn from the training part of a corpus and return it as text; the same for the same documents.

        Raises PluginError, one line, if a package that it needs is missing.
        """

    @abstractmethod
    def encoder(self, learned: str) -> Encoder:
        """Return the encoder of what was learned."""

    def content(self) -> str:
        """Equal for tokenizers that learn the same from the same documents."""
        return canonical_json(config_of(self))
