"""Memorize: a random table from pairs of integers to integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.splits import Split, below, fractions, split_pair
from workers.data.tasks import Batch
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class Memorize(Completion):
    """A fixed random table from keys, two integers in 1 .. n, to a third (paper 002, Table 1).

    Integer i is token i - 1 everywhere; Zhong and Andreas 2024 have other tokens for the parts of a
    key. Training draws keys with replacement. Validation is the whole table, whatever
    `training.validation_batch` is: nothing is generalised. All trials have the same table, whose
    most frequent value is right for 4.3 %.
    """

    integers: int = size(32, low=2)

    @property
    def symbols(self) -> int:
        return self.integers

    @property
    def context(self) -> int:
        return 3

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        return self._examples(below(fractions(streams, batch), self.integers**2))

    def validation(self, streams: Streams, batch: int) -> Batch:
        keys = torch.arange(self.integers**2, device=streams.state.device)
        return self.evaluation_set(self._examples(keys.expand(streams.lanes, -1)))

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {}

    def facts(self) -> Params:
        return {"chance": 1 / self.integers}

    def _examples(self, keys: Tensor) -> Examples:
        pair, values = split_pair(keys, self.integers), _table(self.integers, keys.device)[keys]
        return Examples(input=pair, output=values[..., None], input_length=2, output_length=1, asking=self.separator)


@cache
def _table(integers: int, device: torch.device) -> Tensor:
    """Return the value of each key, [n^2]."""
    return below(fractions(Streams(state=torch.zeros(1, dtype=torch.int64)), integers**2)[0], integers).to(device)
