"""Scorers: with which weights attention mixes values.

`logits` [..., h, q, k] are query . key / sqrt(c) and what positions add; `visible` is true where a query sees a key.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar

from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values


class Scorer:
    """Most look at logits alone and define `weigh`."""

    one_for_all: ClassVar[bool] = False
    """Whether all layers share what it learns."""

    def parameters(self, heads: int) -> dict[str, Parameter]:
        """Return what it learns in a layer."""
        return {}

    def evaluations(self) -> dict[str, Scorer]:
        """Label -> the scorer in its place when the model is evaluated."""
        return {"": self}

    def weights(self, query: Tensor, key: Tensor, bias: Tensor | None, visible: Tensor, learned: Values) -> Tensor:
        """[..., h, q, k], 0 where nothing is seen."""
        logits = query @ key.mT / sqrt(query.shape[-1])
        return self.weigh(logits if bias is None else logits + bias, visible, learned)

    def weigh(self, logits: Tensor, visible: Tensor, learned: Values) -> Tensor:
        """Return the weights of logits."""
        raise NotImplementedError


def soften(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the keys that are seen."""
    return logits.masked_fill(~visible, float("-inf")).softmax(-1)


def count_keys(visible: Tensor, logits: Tensor) -> Tensor:
    """[..., q, 1] how many keys each query sees."""
    return visible.sum(-1, keepdim=True).to(logits.dtype)


def hide(weights: Tensor, visible: Tensor) -> Tensor:
    """Weights with 0 for the keys that are not seen."""
    return weights.masked_fill(~visible, 0.0)
