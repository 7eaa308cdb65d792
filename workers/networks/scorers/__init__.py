"""Scorers say with which weights attention mixes the values.

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


class Scorer(ABC):
    """A scorer's configuration, a frozen dataclass; inside the engine its knobs are the trial's own tensors.

    Most scorers look at the scaled logits alone and derive from LogitScorer; a KernelScorer looks at products of
    features of queries and keys, and others at these themselves.
    """

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        """Return the learned parameters of the scorer in one layer, shapes (heads, ...); most learn nothing.

        The model names them `scorer.<name>`. A knob may set where they start.
        """
        return {}

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights of each query sum to 1."""
        return True

    @property
    def knows_distance(self) -> bool:
        """Whether a key's weight depends on where the key stands, so that reordered keys have other weights."""
        return False

    @property
    def one_for_all(self) -> bool:
        """Whether the layers of a model share what the scorer learns; most layers have their own."""
        return False

    @abstractmethod
    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Weights [..., h, q, k] from `query` [..., h, q, c] and `key` [..., h, k, c], both unscaled.

        `visible` [q, k] or [..., 1, q, k] bool says which keys a query sees; invisible keys get weight exactly 0, and
        every query sees at least one key. `learned`: the values of `parameters`, [h, ...] each.
        """

    def evaluations(self) -> Mapping[str, Scorer]:
        """Label -> the scorer that validation uses, with the same learned parameters; most are the same there.

        Under the empty label the one that counts; others have a label, `scorer=trained` the one of training.
        """
        return {"": self}


class LogitScorer(Scorer):
    """A scorer that depends on the scaled logits alone; positions may add to these and a model may cap them."""

    SIMPLER: ClassVar[Mapping[str, Sequence[float]]] = {}
    """Knob -> values for which `weigh` is simpler with a plain number; native steps have functions for each of them."""

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return self.of_logits(scaled_logits(widen(query), widen(key)), visible, learned).to(query.dtype)

    @property
    def may_pad(self) -> bool:
        """Whether invisible keys may be added: not where the scorer counts all keys there are."""
        return True

    @final
    def of_logits(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Weights [..., h, q, k] from `logits` [..., h, q, k]; the rest as in `weights`.

        Half precision is computed in float32, where sums over many keys and small differences survive.
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
        """The function phi of each channel. It learns `scorer.phi.<name>`, for all heads together."""

    def placing(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return factors [q, k] of the products, by the positions of query and key; None where there are none."""
        return None

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        return under("phi", self.features.parameters())

    @final
    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        own = {name: widen(value) for name, value in within("phi", learned).items()}
        products = self.features.apply(widen(query), own) @ self.features.apply(widen(key), own).mT
        factors = self.placing(query.shape[-2], key.shape[-2], query.device)
        products = products if factors is None else products * factors.to(products.dtype)
        return self.weigh(products, visible, learned).to(query.dtype)

    @abstractmethod
    def weigh(self, products: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        """Weights [..., h, q, k] from products [..., h, q, k] in float32 or float64; the rest as in `weights`."""


def scaled_logits(query: Tensor, key: Tensor) -> Tensor:
    """Dot products of queries and keys over sqrt(c), [..., h, q, k]. Source: Vaswani et al. 2017, equation 1."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def widen(values: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def per_head(learned: Tensor) -> Tensor:
    """[h] as [h, 1, 1], to meet logits [..., h, q, k]."""
    return learned[..., None, None]


def visible_keys(visible: Tensor, like: Tensor) -> Tensor:
    """[q, 1] how many keys each query sees, in the precision of `like`."""
    return visible.sum(-1, keepdim=True).to(like.dtype)


def masked_softmax(logits: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; finite values and gradients as long as each row sees a key.

    Spelled out, since torch's own softmax leaves the vector units idle when rows are short: ten times slower at 8 keys.
    """
    masked = logits.masked_fill(~visible, float("-inf"))
    powers = (masked - masked.amax(-1, keepdim=True).detach()).exp()
    return powers / powers.sum(-1, keepdim=True)
