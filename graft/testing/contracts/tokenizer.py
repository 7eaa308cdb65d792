"""The contract of tokenizers."""

from __future__ import annotations

from graft.testing.common import Configuration, build
from workers.data.tokenizers import Tokenizer

TEXT = "The cat sat.\nA hat, a mat!\n"


def check_round_trip(configuration: Configuration) -> None:
    """Assert that decoding gives the text back, tokens are in range, and learning is repeatable."""
    tokenizer: Tokenizer = build("tokenizer", configuration)
    learned = tokenizer.learn([TEXT])
    assert learned == tokenizer.learn([TEXT]), "of the same documents it learns something else each time"
    encoder = tokenizer.encoder(learned)
    tokens = encoder.encode(TEXT)
    assert all(0 <= token < encoder.size for token in tokens), f"a token is not in 0 .. {encoder.size - 1}"
    assert encoder.decode(tokens) == TEXT, f"{TEXT!r} becomes {encoder.decode(tokens)!r}"
