"""The set model of paper 001: one attention head pools the items of a set for a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.fields import part, size
from workers.activations.gelu import Gelu
from workers.models import Attention, Linear, Model, Site, over
from workers.parameters import Constant, Parameter, Parameters, lecun_normal, under, within
from workers.scorers import LogitScorer, Scorer
from workers.tasks import Batch, SetTask, Task

_GELU = Gelu(form="tanh")


@final
@dataclass(frozen=True, kw_only=True)
class AttentionPooling(Model):
    """Deep Sets with one head of dot-product attention as the aggregation: y = phi(attention(psi_q(q), psi_x(x_i))).

    psi_x is two maps, each with a GELU after it, psi_q and phi are a map, a GELU and a map; GELU in its tanh form. All
    maps, those of the head too, have biases and start as flax's do, LeCun normal and zero; weight decay applies to all.
    Source: paper 001, Appendix A.3 and its listing.

    As a set has one query, neither keys nor values are computed item by item: h_i . (W_K q) is the logit of item i,
    and W_V is applied to the pooled h. That is the same function with a third of the multiplications.

    Legend: N sets, n items, d width, c classes.
    """

    width: int = size(128)
    scorer: Scorer = part(Scorer, "adaptive_temperature")

    def check(self, task: Task) -> None:
        """Any task over sets fits: items have no order and no limit in number."""
        over(SetTask, task, self)

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        task, width = over(SetTask, task, self), self.width
        return {
            **_map("item_in", task.features, width),
            **_map("item_out", width, width, matrices=1),
            **_map("query_in", task.query_features, width),
            **_map("query_out", width, width, matrices=1),
            **_map("query", width, width, matrices=1),
            **_map("key_value", width, 2 * width, matrices=2),
            **under("scorer", self.scorer.parameters(heads=1)),
            **_map("output", width, width, matrices=1),
            **_map("class_in", width, width, matrices=1),
            **_map("class_out", width, task.classes),
        }

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        return {}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        items, question = self._read(parameters, batch)
        weights = self._weights(parameters, items, question, batch)  # [N, 1, 1, n]
        pooled = weights[:, 0] @ items  # [N, 1, d]
        _, value = parameters["key_value"].chunk(2, dim=-1)
        _, value_bias = parameters["key_value_bias"].chunk(2, dim=-1)
        mixed = (pooled @ value + weights[:, 0].sum(-1, keepdim=True) * value_bias)[:, 0]  # [N, d]
        hidden = _gelu(_mapped(_mapped(mixed, "output", parameters), "class_in", parameters))
        return _mapped(hidden, "class_out", parameters)
