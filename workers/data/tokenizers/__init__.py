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
        """Return the tokens of a text, without what has no token."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""


class HasFile(Encoder):
    """An encoder that other programs can load, as a Hugging Face `tokenizer.json`."""

    @abstractmethod
    def file(self) -> tuple[str, str]:
        """Return the file's text, with one more token at its end, and this token's name."""


class Tokenizer(ABC):
    """A tokenizer's configuration, a frozen dataclass without knobs: all of it is structural."""

    @abstractmethod
    def learn(self, documents: Iterable[str]) -> str:
        """Return what is learned as text, always the same; PluginError for a missing package."""

    @abstractmethod
    def encoder(self, learned: str) -> Encoder:
        """Return the encoder of what was learned."""

    def content(self) -> str:
        """Return a text, equal for tokenizers that learn the same from the same documents."""
        return canonical_json(config_of(self))
