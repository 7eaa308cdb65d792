"""Recordings of small functions, and numbers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.numerics.tracing import Traced


def of_function(function: Callable[..., Any], *leaves: Tensor) -> Any:
    """Return what a recording of a function gives by its kernels."""
    return Traced(("test", object()), function)(*leaves)


def numbers(shape: Sequence[int], how: str, dtype: torch.dtype) -> Tensor:
    """Numbers of this shape that lie in memory in this way."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)
    if how == "transposed":
        return drawn.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "broadcast":
        return drawn[:, :1].expand(shape)
    return torch.cat([drawn, drawn], 2)[:, :, : shape[2]] if how == "sliced" else drawn
