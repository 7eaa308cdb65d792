"""Sequence completion: the algorithmic tasks of paper 002 (section 3, Table 1, Appendix B).

A sequence is an input, a token that asks, mostly a separator, and an output; models are trained and
evaluated on the output alone. Examples, splits and fixed tables are the same for all trials; a
trial's seed decides in which order it sees the examples. Legend: L lanes, N sequences, T tokens of
a whole sequence, s = T - 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from workers.data.splits import Split
from workers.data.tasks import Batch, SomeTokens
from workers.numerics.randomness import Streams
from workers.numerics.tensors import nan_if_not_finite


class Examples(NamedTuple):
    """Inputs and outputs; both start at position 0, and nothing beyond their lengths is read."""

    input: Tensor  # [L, N, a] int64
    output: Tensor  # [L, N, b] int64
    input_length: Tensor | int  # [L, N, 1], or one for all
    output_length: Tensor | int
    asking: Tensor | int  # [L, N, 1], or one for all: the token that asks for the output
    answer: Tensor | None = None  # [L, N, 1]: the place in the input where the output stands


@dataclass(frozen=True, kw_only=True)
class Completion(SomeTokens):
    """A task whose tokens are its symbols, then the separator, then padding on the right."""

    @property
    @abstractmethod
    def symbols(self) -> int:
        """Number of tokens that inputs and outputs are made of."""

    @abstractmethod
    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        """Draw examples of a split."""

    @final
    @property
    def separator(self) -> int:
        """The token between input and output, in the tasks that have one."""
        return self.symbols

    @final
    @property
    def padding(self) -> int:
        """The token after the output; no model sees it before it has answered."""
        return self.symbols + 1

    @final
    @property
    def tokens(self) -> int:
        return self.symbols + 2

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        return self._batch(self.examples(streams, batch, Split.TRAINING), self.context)

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self.evaluation_set(self.examples(streams, batch, Split.VALIDATION))

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {"test": self.evaluation_set(self.examples(streams, batch, Split.TEST))}

    @final
    def evaluation_set(self, examples: Examples) -> Batch:
        """Return a set padded to the longest input, so that one recording serves all sets.

        `relevant` [L, N, s] is True where the answer stands in the input, if it stands there.
        """
        batch = self._batch(examples, self.longest)
        if examples.answer is not None:
            batch["relevant"] = examples.answer == torch.arange(self.longest, device=examples.answer.device)
        return batch

    @final
    def identity(self, batch: Batch) -> Tensor:
        """Return the input and the token that asks; outputs follow from them."""
        inputs, before = batch["inputs"], batch["wanted"].cumsum(-1) == 0
        asked = torch.nn.functional.pad(before[..., :-1], (1, 0), value=True)
        return (inputs + 1) * asked

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `accuracy`, the share of an output's tokens that are the most likely ones.

        "Token-wise accuracy of the output part" (paper 002, Appendix B), after the right ones.
        """
        wanted = batch["wanted"].to(outputs.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype) + nan_if_not_finite(outputs)
        return {"accuracy": (right * wanted).sum(-1) / wanted.sum(-1)}

    @final
    def whole_accuracy(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return 1 [N] if all tokens of an output are the likeliest after the right ones."""
        right = (outputs.argmax(-1) == batch["targets"]) | ~batch["wanted"]
        return right.all(-1).to(outputs.dtype) + nan_if_not_finite(outputs).sum(-1)

    @final
    def evaluated_positions(self, batch: Batch) -> Tensor | None:
        return batch["wanted"]

    def _batch(self, examples: Examples, length: int) -> Batch:
        """Return `inputs`, `targets`, and `wanted`, True at targets of the output, [L, N, s]."""
        first, last = examples.input, examples.output.shape[-1] - 1
        start = examples.input_length + 1
        index = torch.arange(length + 1, device=first.device)  # [T]
        in_output = (index - start).expand(*first.shape[:-1], -1)
        wanted = (in_output >= 0) & (in_output < examples.output_length)
        output = examples.output.gather(-1, in_output.clamp(0, last))
        before = torch.nn.functional.pad(first, (0, length + 1 - first.shape[-1]))
        sequence = torch.where(wanted, output, torch.where(index < start - 1, before, self.padding))
        sequence = torch.where(index == start - 1, examples.asking, sequence)
        return {"inputs": sequence[..., :-1], "targets": sequence[..., 1:], "wanted": wanted[..., 1:]}
