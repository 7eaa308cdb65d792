"""Modular addition."""

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
class AddMod(Completion):
    """a and b give (a + b) mod n; 95 % of all pairs are for training (paper 002, Table 1).

    For n = 97 these are floor(0.95 n^2) = 8,938, and 471 others, the same for all trials. Training
    draws pairs with replacement. Paper 002 has test sets of 1,000 examples, more than there are:
    validation is all 471, whatever `training.validation_batch` is, without a second held-out set.
    """

    modulus: int = size(97, low=5)

    @property
    def symbols(self) -> int:
        return self.modulus

    @property
    def context(self) -> int:
        return 3

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        pairs = _pairs(self.modulus, streams.state.device)[: self._training_pairs]
        return self._examples(pairs[below(fractions(streams, batch), self._training_pairs)])

    def validation(self, streams: Streams, batch: int) -> Batch:
        pairs = _pairs(self.modulus, streams.state.device)[self._training_pairs :]
        return self.evaluation_set(self._examples(pairs.expand(streams.lanes, -1)))

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {}

    def facts(self) -> Params:
        return {"chance": 1 / self.modulus}

    @property
    def _training_pairs(self) -> int:
        return 95 * self.modulus**2 // 100

    def _examples(self, pairs: Tensor) -> Examples:
        both = split_pair(pairs, self.modulus)
        total = both.sum(-1, keepdim=True) % self.modulus
        return Examples(input=both, output=total, input_length=2, output_length=1, asking=self.separator)


@cache
def _pairs(modulus: int, device: torch.device) -> Tensor:
    """Return all pairs a n + b in a fixed random order, [n^2]."""
    return Streams(state=torch.zeros(1, dtype=torch.int64)).permutations(1, modulus**2, modulus**2)[0, 0].to(device)
