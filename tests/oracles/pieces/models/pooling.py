"""The set model of paper 001 (Appendix A.3): one head pools the items of a set for a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.models.model import Model, is_given
from tests.oracles.pieces.parameters import (
    Batch,
    Parameter,
    Values,
    start_constant,
    start_normal,
    under,
    within,
)
from tests.oracles.pieces.parts import build


def make_map(name: str, inputs: int, outputs: int, matrices: int = 0) -> dict[str, Parameter]:
    """Return a map with a bias that starts as flax's do: LeCun normal, of variance 1 / inputs after truncation, and
    0.
    """
    weight = Parameter((inputs, outputs), start_normal(inputs**-0.5 / 0.8796256610342398), matrices=matrices)
    return {name: weight, f"{name}_bias": Parameter((outputs,), start_constant(0.0))}


def apply_map(vectors: Tensor, name: str, values: Values) -> Tensor:
    """Return the map of this name."""
    return vectors @ values[name] + values[f"{name}_bias"]


def apply_gelu(vectors: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return functional.gelu(vectors, approximate="tanh")


@dataclass(kw_only=True)
class AttentionPoolingModel(Model):
    """phi(attention(psi_q(query), psi_x(items)))."""

    width: int
    scorer: Any

    def __post_init__(self) -> None:
        self.scorer = build("scorer", self.scorer)

    def parameters(self, task: Any) -> dict[str, Parameter]:
        width = self.width
        return {
            **make_map("item_in", task.features, width),
            **make_map("item_out", width, width, 1),
            **make_map("query_in", task.query_features, width),
            **make_map("query_out", width, width, 1),
            **make_map("query", width, width, 1),
            **make_map("key_value", width, 2 * width, 2),
            **under("scorer", self.scorer.parameters(1)),
            **make_map("output", width, width, 1),
            **make_map("class_in", width, width, 1),
            **make_map("class_out", width, task.classes),
        }

    def outputs(self, values: Values, batch: Batch, keep: Values) -> Tensor:
        kind = values["item_in"].dtype
        items = apply_gelu(apply_map(batch["inputs"].to(kind), "item_in", values))
        items = apply_gelu(apply_map(items, "item_out", values))
        asked = apply_map(apply_gelu(apply_map(batch["query"].to(kind), "query_in", values)), "query_out", values)
        query = apply_map(asked, "query", values)[:, None, None]  # [N, 1, 1, d]
        key, value = apply_map(items, "key_value", values)[:, None].chunk(2, -1)  # [N, 1, n, d]
        visible = is_given(batch)[:, None, None]
        weights = self.scorer.weights(query, key, None, visible, within("scorer", values))
        mixed = (weights @ value)[:, 0, 0]
        hidden = apply_gelu(apply_map(apply_map(mixed, "output", values), "class_in", values))
        return apply_map(hidden, "class_out", values)
