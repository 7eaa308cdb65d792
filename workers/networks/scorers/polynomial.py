"""Polynomial attention: a power of the logits instead of an exponential."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import option, size
from workers.networks.scorers import LogitScorer, visible_keys
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Polynomial(LogitScorer):
    """Weights z^power / sqrt(N), of either sign; rows do not sum to 1.

    The source's P1 and P3 have powers 1 and 3. N counts the keys that the query sees (`visible`),
    or all (`all`): the source and paper 002 write the sequence's length, which leaves causal
    attention open. Of sets, and of probes of an encoder, `all` would count what fills up a batch,
    and is refused. Paper 002 does not scale z by 1 / sqrt(c): its P3 is c^1.5 times as large.
    Source: Saratchandran et al. 2024, "Rethinking Softmax: Self-Attention with Polynomial
    Activations", section 4.
    """

    EXAMPLES: ClassVar[Examples] = ({}, {"power": 1, "keys": "all"})

    power: int = size(3, low=1, high=5)
    keys: str = option("visible", ("visible", "all"))

    @property
    def may_pad(self) -> bool:
        return self.keys == "visible"

    @property
    def sums_to_one(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        # torch's own power rounds by an entry's place.
        power = functools.reduce(torch.mul, [logits] * self.power)
        counted = visible if self.keys == "visible" else visible.new_ones(visible.shape)
        return (power / visible_keys(counted, logits).sqrt()).masked_fill(~visible, 0.0)
