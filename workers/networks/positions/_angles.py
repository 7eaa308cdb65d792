"""The angles t / base^(2i/n) that sinusoidal and rotary positions share."""

from __future__ import annotations

import torch
from torch import Tensor

from workers.numerics.tensors import power


def angles(length: int, channels: int, base: float | Tensor, device: torch.device) -> Tensor:
    """Return [length, channels / 2] float64: t times base^(-2i/channels), the frequency of i."""
    pairs = torch.arange(0, channels, 2, dtype=torch.float64, device=device) / channels
    positions = torch.arange(length, dtype=torch.float64, device=device)
    base = torch.as_tensor(base, dtype=torch.float64, device=device)
    return positions[:, None] * power(base, -pairs)
