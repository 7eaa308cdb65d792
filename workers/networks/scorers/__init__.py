"""Scorers: the weights with which attention mixes values.

Legend: h heads, q queries, k keys, c channels of a head.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from workers.networks.activations import Activation
from workers.numerics.parameters import Parameter, Parameters, under, within
from workers.numerics.tensors import widen as widen


class Scorer(ABC):
    """A scorer's configuration, a frozen dataclass; in the engine its knobs are tensors.

    Most scorers look at the scaled logits alone and derive from LogitScorer; a KernelScorer looks
    at products of features of queries and keys, others at queries and keys themselves.
    """

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        """Return the learned parameters of a layer, of shapes (heads, ...); most learn nothing.

        The model names them `scorer.<name>`. A knob may set their start.
        """
        return {}

    @property
    def sums_to_one(self) -> bool:
        """True if the weights of each query sum to 1."""
        return True

    @property
    def knows_distance(self) -> bool:
        """True if a key's weight depends on its position, so that the order of keys matters."""
        return False

    @property
    def counts_all_keys(self) -> bool:
        """True if the number of keys, seen or not, changes the weights, so that padding does."""
        return False

    @property
    def one_for_all(self) -> bool:
        """True if the layers of a model share what the scorer learns."""
        return False

    @abstractmethod
    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Return weights [..., h, q, k] of unscaled `query` [..., h, q, c], `key` [..., h, k, c].

        `visible` [q, k] or [..., 1, q, k] bool: the keys that a query sees, at least one; the
        others get weight exactly 0. `learned`: the values of `parameters`, [h, ...] each.
        """

    def evaluations(self) -> Mapping[str, Scorer]:
        """Return label -> scorer of validation, with the same parameters; most do not differ.

        The empty label counts; `scorer=trained` is the scorer of training, if it differs.
        """
        return {"": self}


class LogitScorer(Scorer):
    """A scorer of the scaled logits alone; positions may add to them and a model may cap them."""

    SIMPLER: ClassVar[Mapping[str, Sequence[float]]] = {}
    """Knob -> values at which `weigh` is simpler; native steps have functions for each of them, if
    the scorer learns nothing."""

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return self.of_logits(scaled_logits(widen(query), widen(key)), visible, learned).to(query.dtype)

    @property
    def may_pad(self) -> bool:
        """True if invisible keys, and queries after all others, change no weights of the rest."""
        return True

    @property
    def counts_all_keys(self) -> bool:
        return not self.may_pad

    @final
    def of_logits(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Return weights [..., h, q, k] of `logits` [..., h, q, k]; the rest as in `weights`.

        Half precision is computed in float32, in which long sums and small differences survive.
        """
        return self.weigh(widen(logits), visible, learned).to(logits.dtype)

    @abstractmethod
    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Return the weights of `of_logits`, for logits in float32 or float64."""


class KernelScorer(Scorer):
    """A scorer of kernels phi(q) . phi(k): it weighs products of features, which nothing scales."""

    @property
    @abstractmethod
    def features(self) -> Activation:
        """The function phi of each channel; all heads share its `scorer.phi.<name>`."""

    def placing(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return factors [q, k] of the products, by positions of query and key; None for none."""
        return None

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        return under("phi", self.features.parameters())

    @final
    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        parameters = {name: widen(value) for name, value in within("phi", learned).items()}
        products = self.features.apply(widen(query), parameters) @ self.features.apply(widen(key), parameters).mT
        factors = self.placing(query.shape[-2], key.shape[-2], query.device)
        products = products if factors is None else products * factors.to(products.dtype)
        return self.weigh(products, visible, learned).to(query.dtype)

    @abstractmethod
    def weigh(self, products: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Return weights [..., h, q, k] of products in float32 or float64; else as `weights`."""


def scaled_logits(query: Tensor, key: Tensor) -> Tensor:
    """Return products over sqrt(c), [..., h, q, k]. Source: Vaswani et al. 2017, equation 1."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def per_head(learned: Tensor) -> Tensor:
    """Return [h] as [h, 1, 1], to meet logits [..., h, q, k]."""
    return learned[..., None, None]


def visible_keys(visible: Tensor, like: Tensor) -> Tensor:
    """Return the number [q, 1] of keys that each query sees, in the type of `like`."""
    return visible.sum(-1, keepdim=True).to(like.dtype)


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Return the softmax over visible keys, finite with its gradients if each row sees a key.

    torch's own leaves vector units idle when rows are short: ten times slower at 8 keys.
    """
    masked = logits.masked_fill(~visible, float("-inf"))
    powers = (masked - masked.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True)
