"""Small tensor functions that more than one family needs."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(tokens: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[..., size] with 1 at each token. A comparison, so that it batches over lanes and needs no scatter."""
    return (tokens[..., None] == torch.arange(size, device=tokens.device)).to(dtype)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log likelihood [...] of `targets` [...] under softmax(logits [..., v]).

    Spelled out, as torch's own log-softmax leaves the vector units idle when rows are short.
    """
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    picked = (shifted * one_hot(targets, logits.shape[-1], logits.dtype)).sum(-1)
    return shifted.exp().sum(-1).log() - picked
