"""String matching of CLRS-Text. Legend: as in `algorithms`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import Algorithm, Parts, within
from workers.data.clrs.dynamic import LETTERS, longest_strings, write_strings
from workers.data.clrs.writing import places
from workers.data.splits import Split, below, draw_in_split


@dataclass(frozen=True, kw_only=True)
class StringMatching(Algorithm):
    """The first place of a pattern, a fifth of all letters and at least one, in a text.

    Letters are uniform on 0 .. 3; the pattern is copied to a place before the text's last letter.
    That letter is free, and so is a number added to all letters modulo 4, which moves no match:
    these two and the rest decide the split. Both matchers of CLRS-Text have the same answers.
    """

    asked: str = "match"

    def numbers(self, size: int) -> int:
        return size + 2

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        letters = below(fractions[..., 2:], LETTERS)
        index = torch.arange(letters.shape[-1], device=letters.device)
        pattern, text = _lengths(sizes)
        start = below(fractions[..., :1], text - pattern)
        inside = (index >= start) & (index < start + pattern)
        copied = letters.gather(-1, (text + index - start).clamp(0, index.shape[-1] - 1))
        letters = torch.where(inside, copied, letters)
        added = within((letters - letters.gather(-1, text)) % LETTERS, sizes, 0)
        last = index == text - 1
        rest = torch.cat([sizes, added.masked_fill(last, 0)], -1)
        pair = draw_in_split(fractions[..., 1], rest, LETTERS**2, split)[..., None]
        return within(torch.where(last, pair % LETTERS, (added + pair // LETTERS) % LETTERS), sizes, 0)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        pattern, text = _lengths(sizes)
        size = example.shape[-1]
        matches = torch.arange(size, device=example.device) <= text - pattern
        for offset in range(max(size // 5, 1)):
            letter = example.gather(-1, (text + offset).clamp(max=size - 1))
            matches = matches & ((example.roll(-offset, -1) == letter) | (offset >= pattern))
        first = matches.int().argmax(-1, keepdim=True)
        return Parts(given=write_strings(example, text, sizes), answer=places(first).flatten(-2))

    def longest(self, size: int) -> Parts[str]:
        pattern = max(size // 5, 1)
        return Parts(given=longest_strings(size), answer=str(size - 2 * pattern))


def _lengths(sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of letters [..., 1] of the pattern and of the text."""
    pattern = (sizes // 5).clamp(min=1)
    return pattern, sizes - pattern
