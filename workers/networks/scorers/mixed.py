"""Different scorers for different heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples, name_of, replace
from spaces.plugins.fields import part, size
from workers.networks.scorers import LogitScorer, Scorer
from workers.numerics.parameters import Parameter, Parameters, under, within


@dataclass(frozen=True, kw_only=True)
class Mixed(LogitScorer):
    """`first` for the first heads, `second` for the rest: half each, or `first_heads` the first.

    Either may be mixed again, for any list of scorers: tanh, average, ReLU and x^2 on two of eight
    heads each are {first: {mixed: {first: tanh, second: average}}, second: {mixed: {first: relu,
    second: square}}}. Source: paper 000, Appendix C. Only scorers of logits can be mixed.
    """

    EXAMPLES: ClassVar[Examples] = (
        {},
        {"first": {"name": "mixed", "first": {"name": "tanh"}, "second": {"name": "ssa"}}},
    )

    first: Scorer = part(Scorer, "softmax")
    second: Scorer = part(Scorer, "average")
    first_heads: int = size(0, low=0)
    """The heads of `first`; 0: half of them, rounded up."""

    def __post_init__(self) -> None:
        for field, scorer in (("first", self.first), ("second", self.second)):
            if not isinstance(scorer, LogitScorer):
                raise PluginError(
                    f"scorer.{field}: {name_of(scorer)!r} reads queries and keys; mixed takes scorers of logits"
                )

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        first = self.split(heads)
        if first >= heads:
            raise PluginError(f"model.scorer.first_heads: {first} of {heads} heads leave none for model.scorer.second")
        return {
            **under("first", self.first.parameters(first)),
            **under("second", self.second.parameters(heads - first)),
        }

    @property
    def sums_to_one(self) -> bool:
        return self.first.sums_to_one and self.second.sums_to_one

    @property
    def may_pad(self) -> bool:
        return all(isinstance(scorer, LogitScorer) and scorer.may_pad for scorer in (self.first, self.second))

    @property
    def counts_all_keys(self) -> bool:
        return self.first.counts_all_keys or self.second.counts_all_keys

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        first = self.split(logits.shape[-3])
        assert isinstance(self.first, LogitScorer)
        assert isinstance(self.second, LogitScorer)
        first_weights = self.first.of_logits(logits[..., :first, :, :], visible, within("first", learned))
        second_weights = self.second.of_logits(logits[..., first:, :, :], visible, within("second", learned))
        return torch.cat([first_weights, second_weights], dim=-3)

    def evaluations(self) -> Mapping[str, Scorer]:
        first, second = self.first.evaluations(), self.second.evaluations()
        return {
            label: replace(self, {"first": first.get(label, first[""]), "second": second.get(label, second[""])})
            for label in {**first, **second}
        }

    def split(self, heads: int) -> int:
        """Return how many of so many heads have the first scorer."""
        return min(self.first_heads or (heads + 1) // 2, heads)
