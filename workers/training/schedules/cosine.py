"""Linear warm-up, then half a cosine down."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob, step_count
from workers.training.schedules import Schedule, exact


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Up to the peak over `warmup` steps, then half a cosine down to `end_multiplier` times it.

    Update n (from 0) has the factor (n + 1) / (warmup + 1) while n < warmup, then e + (1 - e) (1 +
    cos(pi (n - warmup) / (steps - warmup))) / 2, e = end_multiplier: the peak at n = warmup
    exactly, the end after the last update. Source: Loshchilov and Hutter 2017, "SGDR", equation 5,
    with one cycle.
    """

    warmup: int = step_count(0)
    end_multiplier: float = knob(0.0, low=0, high=1)

    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        step, steps = exact(step), exact(steps)
        rise = (step + 1) / (self.warmup + 1)
        passed = (step - self.warmup) / torch.clamp(steps - self.warmup, min=1)
        fall = self.end_multiplier + (1 - self.end_multiplier) * (1 + torch.cos(math.pi * passed)) / 2
        return torch.where(step < self.warmup, rise, fall)
