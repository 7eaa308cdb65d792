"""Copying: repeat the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import flag, size
from spaces.records import Params
from workers.data.splits import Split, below, draw_in_split, fractions
from workers.data.tasks import Batch
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Streams

SHORTEST = 2


@dataclass(frozen=True, kw_only=True)
class Copying(Completion):
    """The output is the input; evaluated on longer inputs (COPY of paper 002, Table 1).

    Lengths are uniform on 2 .. `length` in training, on 2 .. `validation_length` in validation;
    each length from there to `test_length` is a condition, `length=16` ...: Table 1 has 2-10, 2-15
    and 16-20. Up to `length` an example's first two tokens and the rest decide its split
    (`draw_in_split`). `test_together` adds a condition of an equal share of each, `lengths=16-20`.
    """

    length: int = size(10, low=SHORTEST)
    validation_length: int = size(15, low=SHORTEST)
    test_length: int = size(20, low=SHORTEST)
    integers: int = size(8, low=4)
    """Inputs are made of the integers 1 .. n; integer i is token i - 1."""
    test_together: bool = flag(False)

    def __post_init__(self) -> None:
        if not self.length <= self.validation_length < self.test_length:
            raise PluginError(
                f"task.validation_length: {self.validation_length} must be at least task.length {self.length} "
                f"and below task.test_length {self.test_length}"
            )

    @property
    def symbols(self) -> int:
        return self.integers

    @property
    def context(self) -> int:
        return 2 * self.length

    @property
    def longest(self) -> int:
        return 2 * self.test_length

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        longest = self.length if split is Split.TRAINING else self.validation_length
        return self._draw(streams, batch, longest, split)

    def held_out(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return lengths as in validation, but no example of it (paper 002, section 3.1: 2-15)."""
        longest = self.validation_length
        return self._batch(self._draw(streams, batch, longest, Split.TRAINING), 2 * longest)

    def _draw(self, streams: Streams, batch: int, longest: int, split: Split) -> Examples:
        drawn = fractions(streams, batch, 1 + longest)
        lengths = SHORTEST + below(drawn[..., :1], longest - SHORTEST + 1)
        rest = below(drawn[..., 3:], self.integers)
        unread = torch.arange(SHORTEST, longest, device=drawn.device) >= lengths
        key = torch.cat([lengths, rest.masked_fill(unread, 0)], -1)  # zeros change no hash
        pair = draw_in_split(drawn[..., 1], key, self.integers**2, split)
        copied = torch.cat([(pair // self.integers)[..., None], (pair % self.integers)[..., None], rest], -1)
        return self._repeat(copied, lengths)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        drawn = below(fractions(streams, batch, self.test_length), self.integers)
        lengths = range(self.validation_length + 1, self.test_length + 1)
        sets = {f"length={n}": self.evaluation_set(self._repeat(drawn[..., :n], n)) for n in lengths}
        if self.test_together:
            turns = lengths[0] + torch.arange(batch, device=drawn.device) % len(lengths)
            together = self._repeat(drawn, turns[:, None].expand(*drawn.shape[:-1], 1))
            sets[f"lengths={lengths[0]}-{lengths[-1]}"] = self.evaluation_set(together)
        return sets

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `accuracy` of whole outputs; tokens' stays high on failures (paper 002, App B)."""
        return {"accuracy": self.whole_accuracy(outputs, batch)}

    def facts(self) -> Params:
        """Return `chance`, that of tokens guessed one by one, over validation's lengths."""
        lengths = range(SHORTEST, self.validation_length + 1)
        return {"chance": sum(self.integers**-length for length in lengths) / len(lengths)}

    def _repeat(self, copied: Tensor, length: Tensor | int) -> Examples:
        return Examples(input=copied, output=copied, input_length=length, output_length=length, asking=self.separator)
