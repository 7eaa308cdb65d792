"""Linear warm-up, then linear decay."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob, step_count
from workers.training.schedules import Schedule, exact


@dataclass(frozen=True, kw_only=True)
class Linear(Schedule):
    """Up to the peak over `warmup` steps, then down to `end_multiplier` times it after the last.

    Update n (from 0) has the factor (n + 1) / (warmup + 1) while n < warmup, then 1 - (1 - e) (n -
    warmup) / (steps - warmup), e = end_multiplier: no rate is zero by construction, and the peak is
    at n = warmup exactly. With warmup >= steps the whole run is warm-up. Source: paper 003, 5.4 and
    Table 1.
    """

    warmup: int = step_count(0)
    end_multiplier: float = knob(0.0, low=0, high=1)

    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        step, steps = exact(step), exact(steps)
        rise = (step + 1) / (self.warmup + 1)
        left = torch.clamp(steps - self.warmup, min=1)
        fall = 1 - (1 - self.end_multiplier) * (step - self.warmup) / left
        return torch.where(step < self.warmup, rise, fall)
