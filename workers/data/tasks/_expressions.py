"""Tables of the forms of nested binary expressions: their texts and the order of operations.

Numbers are counted from left to right, operators as computed. Legend: F forms, m most operations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import accumulate, product

import torch
from torch import Tensor

PAD = 3
"""Entries of a palette after numbers and operators: (, ) and padding."""

Tree = tuple["Tree", "Tree"] | None
"""An operation on two parts; None is a number."""


@dataclass(frozen=True, kw_only=True)
class Forms:
    """Tables of the forms of 1 .. m operations; a palette: numbers, operators, (, ), padding."""

    bounds: Tensor  # [F - 1] upper ends of the forms' probabilities, cumulated, in units of 2^-32
    text: Tensor  # [F, a] places in the palette
    lengths: Tensor  # [F] tokens of the text before padding
    steps: Tensor  # [F, m, 2] operators' sides: a number, or m + 1 + the operator of a result
    results: Tensor  # [F] the place of the value in numbers [m + 1] and results [m]

    @property
    def longest(self) -> int:
        """Length of the longest text."""
        return self.text.shape[-1]


_CPU = torch.device("cpu")


@cache
def forms(operations: int, device: torch.device = _CPU) -> Forms:
    """Return all forms of 1 .. `operations` operations, each of these numbers equally likely."""
    counts = range(1, operations + 1)
    trees = [(share / operations, tree) for count in counts for share, tree in _trees(count)]
    drafts = [_Draft.of(tree, operations) for _, tree in trees]
    longest = max(len(draft.text) for draft in drafts)
    padding = 2 * operations + 3
    cumulated = [math.ceil(total * 2**32) for total in accumulate(share for share, _ in trees)]
    texts = [draft.text + [padding] * (longest - len(draft.text)) for draft in drafts]
    steps = [draft.steps + [(0, 0)] * (operations - len(draft.steps)) for draft in drafts]
    return Forms(
        bounds=torch.tensor(cumulated[:-1], dtype=torch.int64, device=device),
        text=torch.tensor(texts, device=device),
        lengths=torch.tensor([len(draft.text) for draft in drafts], device=device),
        steps=torch.tensor(steps, device=device),
        results=torch.tensor([operations + len(draft.steps) for draft in drafts], device=device),
    )


def _trees(operations: int) -> Iterator[tuple[Fraction, Tree]]:
    """Yield trees and their probabilities: 0 .. m - 1 other operations on the left, uniform."""
    if operations == 0:
        yield Fraction(1), None
    for left in range(operations):
        for first, second in product(_trees(left), _trees(operations - 1 - left)):
            yield first[0] * second[0] / operations, (first[1], second[1])


@dataclass(kw_only=True)
class _Draft:
    """A form while it is written."""

    operations: int
    numbers: int = 0
    text: list[int] = field(default_factory=list[int])
    steps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @classmethod
    def of(cls, tree: Tree, operations: int) -> _Draft:
        draft = cls(operations=operations)
        draft._write(tree)
        draft.text = draft.text[1:-1]  # the whole is written without parentheses
        return draft

    def _write(self, tree: Tree) -> int:
        """Write a part and return the place of its value among numbers and results."""
        if tree is None:
            self.numbers += 1
            self.text.append(self.numbers - 1)
            return self.numbers - 1
        self.text.append(2 * self.operations + 1)
        left = self._write(tree[0])
        sign = len(self.text)
        self.text.append(-1)
        right = self._write(tree[1])
        self.text.append(2 * self.operations + 2)
        self.steps.append((left, right))
        self.text[sign] = self.operations + len(self.steps)
        return self.text[sign]
