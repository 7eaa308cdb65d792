"""Attention with linear biases."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.networks.positions import Position


@dataclass(frozen=True, kw_only=True)
class Alibi(Position):
    """Add -m (q - k) to the scaled logits, with a slope m of its own for each head.

    The slopes of 2^n heads are 2^(-8/2^n), 2^(-16/2^n), ...; other numbers of heads take those of
    the power of two below, then every second of the next. Source: Press et al. 2022, section 3.
    """

    def bias(self, heads: int, like: Tensor) -> Tensor:
        positions = torch.arange(like.shape[-2], device=like.device)
        distance = (positions[:, None] - positions).to(like.dtype)
        # While it takes a gradient, torch makes no tensor of numbers on the meta device.
        numbers = (
            torch.empty(heads, dtype=like.dtype, device="meta")
            if like.is_meta
            else torch.tensor(slopes(heads), dtype=like.dtype, device=like.device)
        )
        return -numbers[:, None, None] * distance


def slopes(heads: int) -> list[float]:
    """Return one slope per head, as the authors' `get_slopes` does."""
    below = 2 ** int(math.log2(heads))
    first = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2.0 ** (-8 * (i + 1) / (2 * below)) for i in range(0, 2 * below, 2)]
    return first + between[: heads - below]
