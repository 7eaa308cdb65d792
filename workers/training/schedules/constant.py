"""No schedule: the peak rate at every step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.training.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """Factor 1 throughout."""

    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        return torch.ones_like(step, dtype=torch.float64)
