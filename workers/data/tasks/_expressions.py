"""The forms of nested binary expressions, as tables: how each is written, and in which order it is computed.

Numbers are counted from left to right, operators as they are computed. Legend: F forms, m most operations.
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
"""Entries of a palette that follow numbers and operators: ( and ) and padding."""

Tree = tuple["Tree", "Tree"] | None
"""An operation on two parts; None: a number."""


@dataclass(frozen=True, kw_only=True)
class Forms:
    """Tables over all forms of 1 .. m operations; a palette is numbers [m + 1], operators [m], (, ), padding."""

    bounds: Tensor  # [F - 1] upper ends of the forms' probabilities, cumulated, in units of 2^-32
    text: Tensor  # [F, a] places in the palette
    lengths: Tensor  # [F] tokens of the text before padding
    steps: Tensor  # [F, m, 2] left and right of the operators: a number, or m + 1 + an operator, whose result it is
    results: Tensor  # [F] the place of the value in numbers [m + 1] and results [m]

    @property
    def longest(self) -> int:
        """Length of the longest text."""
        return self.text.shape[-1]


_CPU = torch.device("cpu")


@cache
def forms(operations: int, device: torch.device = _CPU) -> Forms:
    """Return all forms of 1 .. `operations` operations, each number of operations equally likely; tables on the
    device.
    """
    found = [(share / operations, tree) for count in range(1, operations + 1) for share, tree in _trees(count)]
    drafts = [_Draft.of(tree, operations) for _, tree in found]
    longest = max(len(draft.text) for draft in drafts)
    padding = 2 * operations + 3
    cumulated = [math.ceil(total * 2**32) for total in accumulate(share for share, _ in found)]
    return Forms(
        bounds=torch.tensor(cumulated[:-1], dtype=torch.int64, device=device),
        text=torch.tensor([draft.text + [padding] * (longest - len(draft.text)) for draft in drafts], device=device),
        lengths=torch.tensor([len(draft.text) for draft in drafts], device=device),
        steps=torch.tensor(
            [draft.steps + [(0, 0)] * (operations - len(draft.steps)) for draft in drafts], device=device
        ),
        results=torch.tensor([operations + len(draft.steps) for draft in drafts], device=device),
    )


def _trees(operations: int) -> Iterator[tuple[Fraction, Tree]]:
    """Yield all trees and how likely they are: the left part has 0 .. m - 1 of the other operations, uniform."""
    if operations == 0:
        yield Fraction(1), None
    for left in range(operations):
        for one, other in product(_trees(left), _trees(operations - 1 - left)):
            yield one[0] * other[0] / operations, (one[1], other[1])


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
        """Write a part; the place of its value among numbers and results."""
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
