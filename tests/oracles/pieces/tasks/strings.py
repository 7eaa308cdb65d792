"""Algorithmic tasks that remember, copy, find and match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
from torch import Tensor

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import (
    Words,
    below,
    draw_fractions,
    draw_in_split,
)
from tests.oracles.pieces.tasks.completion import Completion, Example, judge_whole


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
    test_together: bool

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

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        drawn = below(draw_fractions(stream, count, self.test_length), self.integers).tolist()
        lengths = range(self.validation_length + 1, self.test_length + 1)
        sets = {
            f"length={length}": self.write(
                (Example(row[:length], self.separator, row[:length]) for row in drawn), self.longest
            )
            for length in lengths
        }
        if self.test_together:
            cut = [row[: lengths[at % len(lengths)]] for at, row in enumerate(drawn)]
            together = (Example(row, self.separator, row) for row in cut)
            sets[f"lengths={lengths[0]}-{lengths[-1]}"] = self.write(together, self.longest)
        return sets

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
    """Is a string of ( and ), tokens 0 and 1, balanced? 3 says yes, 2 no; trained on short, evaluated on long ones."""

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
        """Return a balanced string, each as likely (Arnold and Sleep 1980)."""
        text, height = list[int](), 0
        for position in range(length):
            left = length - position
            opens = steps[position] * 2 * left * (height + 1) < (height + 2) * (left - height) << 32
            text.append(0 if opens else 1)
            height += 1 if opens else -1
        return text

    def _corrupt(self, text: list[int], kind: int, index: int, other: int) -> None:
        """Two places swap (1/4), or one flips (1/4), or neither."""
        kind, index, other = kind * 4 >> 32, index * len(text) >> 32, other * len(text) >> 32
        if kind == 0:
            text[index], text[other] = text[other], text[index]
        if kind == 1:
            text[index] = 1 - text[index]
