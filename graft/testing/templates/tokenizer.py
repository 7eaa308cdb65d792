"""A tokenizer: how text becomes whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.data.tokenizers import Encoder, Tokenizer


class _Bytes(Encoder):
    @property
    def size(self) -> int:
        return 256

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode(errors="replace"))

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


@dataclass(frozen=True, kw_only=True)
class Example(Tokenizer):
    """Each byte of UTF-8 is a token; nothing is learned."""

    def learn(self, documents: Iterable[str]) -> str:
        return ""

    def encoder(self, learned: str) -> Encoder:
        return _Bytes()
