"""The algorithmic tasks of paper 002: an input, a token that asks, and an output, on which alone models are judged.

A row is made by itself, in plain Python, from fractions of 2^32 that are uniform.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import (
    Integers,
    Words,
)
from tests.oracles.pieces.tasks.task import Task, divide_losses, not_finite


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

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        if self.fixed_set:
            return {}
        return {"test": self.write(self.examples(stream, count, "test"), self.longest)}

    def write(self, examples: Iterable[Example], length: int) -> Batch:
        """Sequences of length + 1 tokens; `wanted` is true where a target is a token of the output."""
        rows, wanted = list[list[int]](), list[list[bool]]()
        for given, asking, answer in examples:
            row = [*given, asking, *answer]
            rows.append(row + [self.symbols + 1] * (length + 1 - len(row)))
            wanted.append([len(given) <= position < len(row) - 1 for position in range(length)])
        tokens = torch.tensor(rows)
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "wanted": torch.tensor(wanted)}

    def identity(self, batch: Batch) -> Integers:
        """Return the input and the token that asks; 0 from there on."""
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
