"""The one door to the package tokenizers, loaded when a byte-pair encoding is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from spaces.errors import PluginError
from workers.data.tokenizers import Encoder, HasFile, Tokenizer

_ENDS = ("<|endoftext|>", "<|end|>")
"""Names of the token after each text: GPT-2's, unless the vocabulary has it already."""
_NEAR = 20
"""Characters on both sides of a faulty one that an error shows."""


def library() -> Any:
    """Return the package tokenizers; raises PluginError that names the extra to install."""
    try:
        return import_module("tokenizers")
    except ImportError as error:
        raise PluginError(
            "task.tokenizer: byte pairs need the package tokenizers; pip install 'graft-search[language]', "
            "or choose character"
        ) from error


def check_text(text: str) -> str:
    """Return the text; raises PluginError for half a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        near = text[max(0, error.start - _NEAR) : error.end + _NEAR]
        raise PluginError(
            f"task.tokenizer: byte pairs need whole characters, and {near!r} has half of one, "
            f"{text[error.start]!r}; mend the text, or choose character"
        ) from error
    return text


class BytePairs(HasFile):
    """A tokenizer of the package, from its JSON."""

    def __init__(self, learned: str) -> None:
        self._tokenizer = library().Tokenizer.from_str(learned)
        # A file may cut texts to the length of its model, and fill them up: here all of a text counts.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> Sequence[int]:
        return self._tokenizer.encode(check_text(text), add_special_tokens=False).ids

    def file(self) -> tuple[str, str]:
        longer = library().Tokenizer.from_str(self._tokenizer.to_str())
        end = next(name for name in _ENDS if longer.token_to_id(name) is None)
        longer.add_special_tokens([end])
        if longer.num_special_tokens_to_add(is_pair=False):
            longer.post_processor = None  # `encode` adds none either
        return longer.to_str(), end

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


class BytePairTokenizer(Tokenizer):
    """A tokenizer that learns the JSON of one of the package's."""

    def encoder(self, learned: str) -> Encoder:
        return BytePairs(learned)
