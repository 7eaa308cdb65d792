"""The largest possible spread of attention's logits, by the size of its weights and inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.diagnostics._heads import by_head
from workers.networks.models import Affine, Attention


@dataclass(frozen=True, kw_only=True)
class LogitSpreadBound(Diagnostic):
    """2 s_Q s_K |y| max |x_i| / sqrt(c), a bound of `logit_spread`; by head and over all.

    A mean over queries. y and the x_i are what a query and its visible keys are made of, s_Q and
    s_K the largest singular values of their matrices. With biases s_Q |y| + |b_Q| stands for s_Q
    |y|, and likewise for keys. Rotations change nothing; normed or convolved queries and keys have
    no bound. Source: paper 001, Proposition 3.1.
    """

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        bounds: list[Tensor] = []
        for layer in layers:
            if layer.query_from is None or layer.key_from is None:
                return {}
            keys, channels = _longest(layer.key_from)[..., None, :], layer.query.shape[-1]
            longest = keys.masked_fill(~layer.visible, 0).amax(-1)  # [N, h, q]
            bounds.append(2 * _longest(layer.query_from) * longest / math.sqrt(channels))
        return by_head(bounds, batch) if bounds else {}


def _longest(source: Affine) -> Tensor:
    """Return a bound [N, h, s] of |x W + b|: W's largest singular value times |x|, plus |b|."""
    stretch = torch.linalg.matrix_norm(source.matrices, ord=2)[:, None]  # [h, 1]
    lengths = torch.linalg.vector_norm(source.vectors, dim=-1)[:, None]  # [N, 1, s]
    return stretch * lengths + torch.linalg.vector_norm(source.biases, dim=-1)[:, None]
