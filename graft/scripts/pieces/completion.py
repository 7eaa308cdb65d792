"""The algorithmic tasks of paper 002: an input, a token that asks, and an output, on which alone models are judged.

A row is made by itself, in plain Python, from fractions of 2^32 that are uniform.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, product
from math import ceil
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from graft.scripts.pieces.parameters import Batch
from graft.scripts.pieces.streams import (
    GOLDEN,
    Integers,
    Words,
    below,
    draw_fractions,
    draw_in_split,
    draw_permutations,
    mix,
)
from graft.scripts.pieces.tasks import Task, divide_losses, not_finite


class Example(NamedTuple):
    """One sequence, in its three parts."""

    given: Sequence[int]
    asking: int
    answer: Sequence[int]


class Completion(Task):
    """Tokens are the task's symbols, the separator, and what fills sequences up."""

    fixed_set: ClassVar[bool] = False
    """Whether validation is a fixed set, which is all there is to be evaluated on."""

    symbols: int
    context: int

    @property
    def separator(self) -> int:
        """The token between input and output."""
        return self.symbols

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.symbols + 2

    @property
    def longest(self) -> int:
        return self.context

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        """Examples of a split, `training`, `validation` or `test`."""
        raise NotImplementedError

    def training(self, stream: Words, count: int, step: int) -> Batch:
        return self.write(self.examples(stream, count, "training"), self.context)

    def validation(self, stream: Words, count: int) -> Batch:
        return self.write(self.examples(stream, count, "validation"), self.longest)

    def shifted(self, stream: Words, count: int) -> Mapping[str, Batch]:
        if self.fixed_set:
            return {}
        return {"test": self.write(self.examples(stream, count, "test"), self.longest)}

    def write(self, examples: Iterable[Example], length: int) -> Batch:
        """Sequences of length + 1 tokens; `wanted` is true where a target is a token of the output."""
        rows, wanted = list[list[int]](), list[list[bool]]()
        for given, asking, answer in examples:
            row = [*given, asking, *answer]
            rows.append(row + [self.symbols + 1] * (length + 1 - len(row)))
            wanted.append([len(given) <= place < len(row) - 1 for place in range(length)])
        tokens = torch.tensor(rows)
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "wanted": torch.tensor(wanted)}

    def identity(self, batch: Batch) -> Integers:
        """The input and the token that asks; 0 from there on."""
        asked = batch["wanted"].int().argmax(1)[:, None] >= torch.arange(batch["inputs"].shape[1])
        return ((batch["inputs"] + 1) * asked).numpy()

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"])[batch["wanted"]].mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        wanted = batch["wanted"].to(outputs.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype) + not_finite(outputs)
        return {"accuracy": (right * wanted).sum(1) / wanted.sum(1)}


def judge_whole(outputs: Tensor, batch: Batch) -> Tensor:
    """[N] 1 where all tokens of the output are the most likely ones."""
    right = (outputs.argmax(-1) == batch["targets"]) | ~batch["wanted"]
    return right.all(1).to(outputs.dtype) + not_finite(outputs).sum(1)


class Addition(Completion):
    """Two numbers of as many digits and their sum; token 10 is the plus."""

    digits: int

    def __post_init__(self) -> None:
        self.symbols, self.context = 11, 3 * self.digits + 2

    def numeral(self, number: int) -> list[int]:
        """The digits in the order of the task."""
        raise NotImplementedError

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        drawn, smallest = draw_fractions(stream, count, 2), 10 ** (self.digits - 1)
        first = below(drawn[:, 0], 9 * smallest)
        second = draw_in_split(drawn[:, 1], first[:, None], 9 * smallest, split)
        for one, other in zip((first + smallest).tolist(), (second + smallest).tolist(), strict=True):
            yield Example([*self.numeral(one), 10, *self.numeral(other)], self.separator, self.numeral(one + other))


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
            one, other = divmod(pair, self.modulus)
            yield Example([one, other], self.separator, [(one + other) % self.modulus])


@dataclass(kw_only=True)
class MemorizeTask(Completion):
    """A fixed random table from pairs to integers; validation is the table."""

    fixed_set: ClassVar[bool] = True
    integers: int

    def __post_init__(self) -> None:
        self.symbols, self.context = self.integers, 3
        self.table = below(draw_fractions(np.array(0, np.uint64), self.integers**2), self.integers).tolist()

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        keys = range(self.integers**2)
        if split == "training":
            keys = below(draw_fractions(stream, count), self.integers**2).tolist()
        for key in keys:
            yield Example(divmod(key, self.integers), self.separator, [self.table[key]])


@dataclass(kw_only=True)
class CopyingTask(Completion):
    """The output is the input; the first two tokens decide on the split."""

    length: int
    validation_length: int
    test_length: int
    integers: int

    def __post_init__(self) -> None:
        self.symbols, self.context = self.integers, 2 * self.length

    @property
    def longest(self) -> int:
        return 2 * self.test_length

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        longest = self.length if split == "training" else self.validation_length
        return self._draw(stream, count, longest, split)

    def held_out(self, stream: Words, count: int, step: int) -> Batch:
        examples = self._draw(stream, count, self.validation_length, "training")
        return self.write(examples, 2 * self.validation_length)

    def _draw(self, stream: Words, count: int, longest: int, split: str) -> Iterable[Example]:
        for drawn in draw_fractions(stream, count, 1 + longest):
            length = 2 + int(below(drawn[0], longest - 1))
            rest = below(drawn[3 : 1 + length], self.integers)
            pair = int(draw_in_split(drawn[1], np.array([length, *rest]), self.integers**2, split))
            copied = [*divmod(pair, self.integers), *rest.tolist()]
            yield Example(copied, self.separator, copied)

    def shifted(self, stream: Words, count: int) -> Mapping[str, Batch]:
        drawn = below(draw_fractions(stream, count, self.test_length), self.integers).tolist()
        return {
            f"length={length}": self.write(
                (Example(row[:length], self.separator, row[:length]) for row in drawn), self.longest
            )
            for length in range(self.validation_length + 1, self.test_length + 1)
        }

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return {"accuracy": judge_whole(outputs, batch)}


@dataclass(kw_only=True)
class HaystackTask(Completion):
    """m_1 c_1 ... m_k c_k m_u: the value after the first marker that is m_u."""

    pairs: int
    markers: int

    def __post_init__(self) -> None:
        self.symbols, self.context = 2 * self.markers, 2 * self.pairs + 1

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        for drawn in draw_fractions(stream, count, 2 + 2 * self.pairs):
            size = 1 + int(below(drawn[0], self.pairs))
            markers = below(drawn[2 : 2 + self.pairs], self.markers).tolist()
            values = (self.markers + below(drawn[2 + self.pairs :], self.markers)).tolist()
            question = markers[int(below(drawn[1], size))]
            body = [token for pair in zip(markers[:size], values[:size], strict=True) for token in pair]
            others = [question, body[0], 0, *body[2:]] + [0] * (2 * (self.pairs - size))
            first = draw_in_split(drawn[2 + self.pairs], np.array(others), self.markers, split)
            body[1] = self.markers + int(first)
            yield Example(body, question, [body[2 * markers.index(question) + 1]])


@dataclass(kw_only=True)
class ParenthesesTask(Completion):
    """Is a string of ( and ), tokens 0 and 1, balanced? 3 says yes, 2 no; trained on short, judged on long ones."""

    length: int

    def __post_init__(self) -> None:
        self.symbols, self.context = 4, self.length + 1

    @property
    def longest(self) -> int:
        return 2 * self.length + 1

    def held_out(self, stream: Words, count: int, step: int) -> Batch:
        return self.write(self.examples(stream, count, "validation"), self.longest)

    def examples(self, stream: Words, count: int, split: str) -> Iterable[Example]:
        shortest, longest = (1, self.length) if split == "training" else (self.length + 1, 2 * self.length)
        for drawn in draw_fractions(stream, count, 11 + longest).tolist():
            kind, size, changes, steps = (drawn[0] * 3) >> 32, drawn[1], drawn[2:11], drawn[11:]
            if kind == 0:  # any string
                length = shortest + (size * (longest - shortest + 1) >> 32)
                text = [step >> 31 for step in steps[:length]]
            else:
                least = (shortest + 1) // 2
                length = 2 * (least + (size * (longest // 2 - least + 1) >> 32))
                text = self._balance(length, steps)
            if kind == 2:
                for start in (0, 3, 6):
                    self._corrupt(text, *changes[start : start + 3])
            heights = list(accumulate(1 - 2 * token for token in text))
            balanced = min(heights) >= 0 and heights[-1] == 0
            yield Example(text, self.separator, [3 if balanced else 2])

    def _balance(self, length: int, steps: Sequence[int]) -> list[int]:
        """A balanced string, each as likely (Arnold and Sleep 1980)."""
        text, height = list[int](), 0
        for place in range(length):
            left = length - place
            opens = steps[place] * 2 * left * (height + 1) < (height + 2) * (left - height) << 32
            text.append(0 if opens else 1)
            height += 1 if opens else -1
        return text

    def _corrupt(self, text: list[int], kind: int, one: int, other: int) -> None:
        """Two places swap (1/4), or one flips (1/4), or neither."""
        kind, one, other = kind * 4 >> 32, one * len(text) >> 32, other * len(text) >> 32
        if kind == 0:
            text[one], text[other] = text[other], text[one]
        if kind == 1:
            text[one] = 1 - text[one]


Tree = tuple["Tree", "Tree"] | None
"""An operation on two parts; None: a number."""


def grow_trees(operations: int) -> list[tuple[Fraction, Tree]]:
    """All expressions of so many operations and how likely they are: the left part's number of them is uniform."""
    if operations == 0:
        return [(Fraction(1), None)]
    return [
        (one[0] * other[0] / operations, (one[1], other[1]))
        for left in range(operations)
        for one, other in product(grow_trees(left), grow_trees(operations - 1 - left))
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
        found = [(share / self.operations, tree) for count in counts for share, tree in grow_trees(count)]
        self.trees = [tree for _, tree in found]
        bounds = accumulate(share for share, _ in found)
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

    def shifted(self, stream: Words, count: int) -> Mapping[str, Batch]:
        drawn, found = draw_fractions(stream, count, 2 * self.operations + 1), dict[str, Batch]()
        for smaller in range(self.operations):
            inside = drawn.copy()
            inside[:, 0] = (drawn[:, 0] + (smaller << 32) + self.operations - 1) // self.operations
            found[f"operations={smaller + 1}"] = self.write(self._read(inside, "test"), self.longest)
        return found

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
