"""The set model of paper 001: one attention head pools the items of a set for a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples, name_of
from spaces.plugins.fields import part, size
from workers.data.tasks import Batch, SetTask, Task, is_given
from workers.networks.activations.gelu import Gelu
from workers.networks.models import Affine, Attention, Model, Site, check_padding, require_task
from workers.networks.scorers import LogitScorer, Scorer
from workers.networks.scorers._estimated import EstimatedSoftmax
from workers.numerics.parameters import Constant, Parameter, Parameters, lecun_normal, under, within

_GELU = Gelu(form="tanh")


@final
@dataclass(frozen=True, kw_only=True)
class AttentionPooling(Model):
    """Deep Sets that aggregate by one head of attention: y = phi(attention(psi_q(q), psi_x(x_i))).

    psi_x is two maps, each with a GELU after it; psi_q and phi are a map, a GELU and a map; GELU in
    its tanh form. All maps, the head's too, have biases and start as flax's do, LeCun normal and
    zero; weight decay applies to all. Source: paper 001, Appendix A.3 and its listing.

    As a set has one query, h_i . (W_K q) is the logit of item i, and W_V is applied to the pooled
    h: the same function with a third of the multiplications.

    Legend: N sets, n items, d width, c classes.
    """

    EXAMPLES: ClassVar[Examples] = ({"width": 6},)

    width: int = size(128)
    scorer: Scorer = part(Scorer, "adaptive_temperature")

    def check(self, task: Task) -> None:
        """Accept any task over sets: items have no order and no limit in number."""
        require_task(SetTask, task, self)
        check_padding(self.scorer, self)
        if any(isinstance(scorer, EstimatedSoftmax) for scorer in self.scorer.evaluations().values()):
            raise PluginError(
                f"model.scorer.estimated: true needs logits of positions with themselves, and {name_of(self)!r} has "
                "none, as its query is no item; set it to false"
            )

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        task, width = require_task(SetTask, task, self), self.width
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
        items, query = self._read(parameters, batch)
        weights = self._weights(parameters, items, query, is_given(batch)[:, None, None])[:, 0]  # [N, 1, n]
        _, (value, bias) = _keys_and_values(parameters)
        mixed = ((weights @ items) @ value + weights.sum(-1, keepdim=True) * bias)[:, 0]  # [N, d]
        hidden = _gelu(_apply_map(_apply_map(mixed, "output", parameters), "class_in", parameters))
        return _apply_map(hidden, "class_out", parameters)

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        items, query = self._read(parameters, batch)
        visible, ((key, bias), _) = is_given(batch)[:, None, None], _keys_and_values(parameters)
        return [
            Attention(
                query=_apply_map(query, "query", parameters)[:, None, None],
                key=(items @ key + bias)[:, None],
                weights=self._weights(parameters, items, query, visible),
                visible=visible,
                query_from=Affine(query[:, None], parameters["query"][None], parameters["query_bias"][None]),
                key_from=Affine(items, key[None], bias[None]),
            )
        ]

    def _read(self, parameters: Parameters, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return psi_x of the items [N, n, d] and psi_q of the query [N, d]."""
        kind = parameters["item_in"].dtype
        items = _gelu(_apply_map(batch["inputs"].to(kind), "item_in", parameters))
        query = _gelu(_apply_map(batch["query"].to(kind), "query_in", parameters))
        return _gelu(_apply_map(items, "item_out", parameters)), _apply_map(query, "query_out", parameters)

    def _weights(self, parameters: Parameters, items: Tensor, query: Tensor, visible: Tensor) -> Tensor:
        """Return [N, 1, 1, n]."""
        query, learned = _apply_map(query, "query", parameters)[:, None], within("scorer", parameters)
        (key, bias), _ = _keys_and_values(parameters)
        if not isinstance(self.scorer, LogitScorer):
            return self.scorer.weights(query[:, None], (items @ key + bias)[:, None], visible, learned)
        scaled = query / math.sqrt(self.width)
        logits = (scaled @ key.mT) @ items.mT + (scaled * bias).sum(-1, keepdim=True)  # [N, 1, n]
        return self.scorer.of_logits(logits[:, None], visible, learned)


def _map(name: str, inputs: int, outputs: int, matrices: int = 0) -> dict[str, Parameter]:
    return {
        name: Parameter(shape=(inputs, outputs), start=lecun_normal(inputs), matrices=matrices),
        f"{name}_bias": Parameter(shape=(outputs,), start=Constant(value=0)),
    }


def _apply_map(vectors: Tensor, name: str, parameters: Parameters) -> Tensor:
    return vectors @ parameters[name] + parameters[f"{name}_bias"]


def _gelu(values: Tensor) -> Tensor:
    return _GELU.apply(values, {})


def _keys_and_values(parameters: Parameters) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the matrix [d, d] and bias [d] of keys, and those of values."""
    matrices, biases = (parameters[name].chunk(2, dim=-1) for name in ("key_value", "key_value_bias"))
    return (matrices[0], biases[0]), (matrices[1], biases[1])
