"""One token for each character."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from workers.data.tokenizers import Encoder, HasFile, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Character(Tokenizer):
    """Each character of the training part is a token, in the order of their code points."""

    def learn(self, documents: Iterable[str]) -> str:
        return "".join(sorted(set[str]().union(*documents)))

    def encoder(self, learned: str) -> Encoder:
        return Characters(learned)


class Characters(HasFile):
    """An encoder whose tokens are characters, each its place in `alphabet`."""

    def __init__(self, alphabet: str) -> None:
        self._alphabet = alphabet
        self._places = {character: token for token, character in enumerate(alphabet)}

    @property
    def size(self) -> int:
        return len(self._alphabet)

    def encode(self, text: str) -> Sequence[int]:
        return [token for character in text if (token := self._places.get(character)) is not None]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self._alphabet[token] for token in tokens)

    def file(self) -> tuple[str, str]:
        """Return pairs that are never joined; characters without a token are left out."""
        end = "<|endoftext|>"
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        written = {
            "version": "1.0",
            "added_tokens": [{"id": self.size, "content": end, "special": True, **flags}],
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "unk_token": None, "vocab": {**self._places, end: self.size}, "merges": []},
        }
        return json.dumps(written, ensure_ascii=False), end
