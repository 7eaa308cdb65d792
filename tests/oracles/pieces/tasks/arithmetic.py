"""Algorithmic tasks that compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, product
from math import ceil
from typing import ClassVar

import numpy as np

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import (
    GOLDEN,
    Integers,
    Words,
    below,
    draw_fractions,
    draw_in_split,
    draw_permutations,
    mix,
)
from tests.oracles.pieces.tasks.completion import Completion, Example


class Addition(Completion):
    """Two numbers of as many digits and their sum; token 10 is the plus."""

    digits: int

    def __post_init__(self) -> None:
        self.symbols, self.context = 11, 3 * self.digits + 2

    def numeral(self, number: int) -> list[int]:
        """Return the digits in the order of the task."""
        raise NotImplementedError

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        drawn, smallest = draw_fractions(stream, count, 2), 10 ** (self.digits - 1)
        first = below(drawn[:, 0], 9 * smallest)
        second = draw_in_split(drawn[:, 1], first[:, None], 9 * smallest, split)
        for number, other in zip((first + smallest).tolist(), (second + smallest).tolist(), strict=True):
            yield Example(
                [*self.numeral(number), 10, *self.numeral(other)], self.separator, self.numeral(number + other)
            )


@dataclass(kw_only=True)
class AddTask(Addition):
    """The first digit first."""

    digits: int

    def numeral(self, number: int) -> list[int]:
        return [int(digit) for digit in str(number)]


@dataclass(kw_only=True)
class AddReversedTask(Addition):
    """The last digit first."""

    digits: int

    def numeral(self, number: int) -> list[int]:
        return [int(digit) for digit in reversed(str(number))]


@dataclass(kw_only=True)
class AddModTask(Completion):
    """a and b give (a + b) mod n; of all pairs, in one fixed order, the first 95 % are trained on."""

    fixed_set: ClassVar[bool] = True
    modulus: int

    def __post_init__(self) -> None:
        self.symbols, self.context = self.modulus, 3
        every = self.modulus**2
        self.pairs = draw_permutations(np.array(0, np.uint64), 1, every, every)[0]
        self.trained = every * 95 // 100

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        pairs = self.pairs[self.trained :]
        if split == "training":
            pairs = self.pairs[below(draw_fractions(stream, count), self.trained)]
        for pair in pairs.tolist():
            number, other = divmod(pair, self.modulus)
            yield Example([number, other], self.separator, [(number + other) % self.modulus])


Tree = tuple["Tree", "Tree"] | None
"""An operation on two parts; None: a number."""


def grow_trees(operations: int) -> list[tuple[Fraction, Tree]]:
    """Return all expressions of so many operations and how likely they are: the left part's number of them is
    uniform.
    """
    if operations == 0:
        return [(Fraction(1), None)]
    return [
        (branch[0] * other[0] / operations, (branch[1], other[1]))
        for left in range(operations)
        for branch, other in product(grow_trees(left), grow_trees(operations - 1 - left))
    ]


def write_expression(tree: Tree, numbers: list[int], operators: list[int], modulus: int) -> tuple[list[int], int]:
    """Tokens and value; numbers are taken from left to right, operators in the order in which they are computed."""
    if tree is None:
        number = numbers.pop(0)
        return [number], number
    left, first = write_expression(tree[0], numbers, operators, modulus)
    right, second = write_expression(tree[1], numbers, operators, modulus)
    operator = operators.pop(0)
    value = (first + second, first - second, first * second)[operator] % modulus
    return [modulus + 3, *left, modulus + operator, *right, modulus + 4], value


@dataclass(kw_only=True)
class ManoTask(Completion):
    """Nested +, - and * modulo n; numbers are tokens 0 .. n - 1, then + - * ( and )."""

    modulus: int
    operations: int
    training_examples: int

    def __post_init__(self) -> None:
        counts = range(1, self.operations + 1)
        pairs = [(share / self.operations, tree) for count in counts for share, tree in grow_trees(count)]
        self.trees = [tree for _, tree in pairs]
        bounds = accumulate(share for share, _ in pairs)
        self.bounds = np.array([ceil(bound * 2**32) for bound in bounds][:-1], np.int64)
        numbers, operators = [0] * (self.operations + 1), [0] * self.operations
        texts = [write_expression(tree, list(numbers), list(operators), self.modulus)[0] for tree in self.trees]
        self.symbols, self.text_length = self.modulus + 5, max(map(len, texts)) - 2
        self.context = self.text_length + 1

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        if split != "training":
            return self._read(draw_fractions(stream, count, 2 * self.operations + 1), split)
        chosen = below(draw_fractions(stream, count), self.training_examples)  # each has a stream of its own
        with np.errstate(over="ignore"):
            streams = mix(chosen.astype(np.uint64) * GOLDEN)
        return self._read(draw_fractions(streams, 2 * self.operations + 1), split)

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        drawn, sets = draw_fractions(stream, count, 2 * self.operations + 1), dict[str, Batch]()
        for smaller in range(self.operations):
            inside = drawn.copy()
            inside[:, 0] = (drawn[:, 0] + (smaller << 32) + self.operations - 1) // self.operations
            sets[f"operations={smaller + 1}"] = self.write(self._read(inside, "test"), self.longest)
        return sets

    def _read(self, drawn: Integers, split: str) -> Iterable[Example]:
        """Examples of a form, operators, the first two numbers, which decide on the split, and the others."""
        for row in drawn:
            tree = self.trees[int(np.searchsorted(self.bounds, row[0], side="right"))]
            operators = below(row[1 : 1 + self.operations], 3).tolist()
            numbers = below(row[2 + self.operations :], self.modulus).tolist()
            text, _ = write_expression(tree, [0, 0, *numbers], list(operators), self.modulus)
            padded = text[1:-1] + [self.symbols + 1] * (self.text_length + 2 - len(text))
            pair = int(draw_in_split(row[1 + self.operations], np.array(padded), self.modulus**2, split))
            numbers = [*divmod(pair, self.modulus), *numbers]
            text, value = write_expression(tree, numbers, list(operators), self.modulus)
            yield Example(text[1:-1], self.separator, [value])
