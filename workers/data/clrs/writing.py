"""Text as tokens, one per character, written for all lanes and sequences at once.

A piece of text is a tensor [L, N, w] of tokens with `BLANK` in the columns that a sequence leaves
out: numbers differ in their digits, lists in how many items they have. `compact` drops the blanks.
Legend: L lanes, N sequences, w columns, n items of a list; `...` is L, N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workers.numerics.tensors import constant

ALPHABET = "0123456789\n ,-.:[]_|AabcdefghijklmnopqrstuvwxyzP"
"""The character of each token: a digit is its own token."""

BLANK = -1


def encode(text: str) -> list[int]:
    """Return the tokens of a text; ValueError for a character that is not in the alphabet."""
    return [ALPHABET.index(character) for character in text]


def decode(tokens: Sequence[int]) -> str:
    """Return the text of tokens."""
    return "".join(ALPHABET[token] for token in tokens)


def write(pieces: Sequence[str | Tensor], like: Tensor) -> Tensor:
    """Return the pieces side by side [..., w]; a text is the same for all of `like` [..., 1]."""

    def repeat(text: str) -> Tensor:
        return constant(tuple(encode(text)), like.device).expand(*like.shape[:-1], -1)

    return torch.cat([repeat(piece) if isinstance(piece, str) else piece for piece in pieces], -1)


def thousandths(values: Tensor) -> Tensor:
    """Write thousandths in -9999 .. 9999, [..., n, 6], without needless zeros: `-1.06`, `0.0`."""
    size, point = values.abs(), torch.full_like(values, ALPHABET.index("."))
    second = torch.where(size % 100 > 0, size // 10 % 10, BLANK)
    third = torch.where(size % 10 > 0, size % 10, BLANK)
    return torch.stack([_sign(values), size // 1000, point, size // 100 % 10, second, third], -1)


def places(values: Tensor) -> Tensor:
    """Write whole numbers in -99 .. 99 without a leading zero, [..., n, 3]."""
    size = values.abs()
    return torch.stack([_sign(values), torch.where(size > 9, size // 10, BLANK), size % 10], -1)


def _sign(values: Tensor) -> Tensor:
    return torch.where(values < 0, ALPHABET.index("-"), BLANK)


def join_items(items: Tensor, given: Tensor, separator: str) -> Tensor:
    """Return the items [..., n, w] that are `given` [..., n], separated: [..., n (s + w)]."""
    between = constant(tuple(encode(separator)), items.device).expand(*given.shape, -1)
    follows = given & (given.cumsum(-1) > 1)
    between = between.masked_fill(~follows[..., None], BLANK)
    return torch.cat([between, items.masked_fill(~given[..., None], BLANK)], -1).flatten(-2)


def write_list(items: Tensor, count: Tensor, separator: str = " ") -> Tensor:
    """Return a list of the first `count` [..., 1] items: `[0.548 0.715]`."""
    given = (torch.arange(items.shape[-2], device=items.device) < count).expand(items.shape[:-1])
    body = join_items(items, given, separator)
    return write(["[", body, "]"], body)


def write_fields(fields: Mapping[str, Tensor], count: Tensor) -> Tensor:
    """Return the first `count` [..., 1] items of lists by name: `x: [0.1 0.2], y: [0.3 0.4]`."""
    pieces = [piece for name, items in fields.items() for piece in (f", {name}: ", write_list(items, count))]
    return write(pieces, count)[..., 2:]  # no comma before the first


def write_matrix(items: Tensor, count: Tensor) -> Tensor:
    """Return the first `count` [..., 1] rows and columns of items [..., n, n, w]: `[[0], [1]]`."""
    return write_list(write_list(items, count[..., None]), count, ", ")


def compact(text: Tensor) -> tuple[Tensor, Tensor]:
    """Return the text [..., w] without its blanks, then anything, and its length [..., 1]."""
    there = text != BLANK
    count = there.cumsum(-1)
    target = torch.where(there, count, 0)  # what is blank goes to column 0, which is cut off
    tokens = text.new_zeros(*text.shape[:-1], text.shape[-1] + 1).scatter(-1, target, text)
    return tokens[..., 1:], count[..., -1:]
