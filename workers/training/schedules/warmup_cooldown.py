"""Linear warm-up, the peak rate, then a cosine cool-down; each a share of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.training.schedules import Schedule, exact


@dataclass(frozen=True, kw_only=True)
class WarmupCooldown(Schedule):
    """Up to the peak over the first share `warmup`, down half a cosine over the last `cooldown`.

    With w = warmup * steps and c = cooldown * steps, update n (from 0) has the factor min(1, (n +
    1) / (w + 1)) times (1 + cos(pi max(0, n - (steps - c)) / c)) / 2: the peak from n = w to n =
    steps - c, and zero only after the last update. Source: paper 002, Table 4, "5% linear warm-up,
    50% cosine cool-down", the defaults, which we read as shares of the steps.
    """

    warmup: float = knob(0.05, low=0, high=1)
    cooldown: float = knob(0.5, low=0, high=1)

    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        step, steps = exact(step), exact(steps)
        rise = ((step + 1) / (self.warmup * steps + 1)).clamp(max=1)
        cooling = torch.as_tensor(self.cooldown * steps)
        passed = (step - (steps - cooling)).clamp(min=0) / cooling.clamp(min=1)
        return rise * (1 + torch.cos(math.pi * passed)) / 2
