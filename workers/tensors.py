"""Small tensor functions that more than one family needs."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(tokens: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[..., size] with 1 at each token. A comparison, so that it batches over lanes and needs no scatter."""
    return (tokens[..., None] == torch.arange(size, device=tokens.device)).to(dtype)
