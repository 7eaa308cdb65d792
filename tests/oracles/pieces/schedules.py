"""Schedules: the factor on the peak rate in update n = 0, 1, ... of `steps`."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


@dataclass(kw_only=True)
class ConstantSchedule:
    """1."""

    def factor(self, n: int, steps: float) -> float:
        """Return the factor of update n."""
        return 1.0


@dataclass(kw_only=True)
class LinearSchedule:
    """Up over `warmup` updates, then straight down to `end_multiplier`."""

    warmup: int
    end_multiplier: float

    def factor(self, n: int, steps: float) -> float:
        """Return the factor of update n."""
        if n < self.warmup:
            return (n + 1) / (self.warmup + 1)
        return 1 - (1 - self.end_multiplier) * (n - self.warmup) / max(steps - self.warmup, 1)


@dataclass(kw_only=True)
class CosineSchedule:
    """Up over `warmup` updates, then down to `end_multiplier` along half a cosine."""

    warmup: int
    end_multiplier: float

    def factor(self, n: int, steps: float) -> float:
        """Return the factor of update n."""
        if n < self.warmup:
            return (n + 1) / (self.warmup + 1)
        share = (n - self.warmup) / max(steps - self.warmup, 1)
        return self.end_multiplier + (1 - self.end_multiplier) * (1 + cos(pi * share)) / 2


@dataclass(kw_only=True)
class WarmupCooldownSchedule:
    """Up over the first share of all updates, down to 0 along half a cosine over the last share."""

    warmup: float
    cooldown: float

    def factor(self, n: int, steps: float) -> float:
        """Return the factor of update n."""
        rise = min(1.0, (n + 1) / (self.warmup * steps + 1))
        cooling = self.cooldown * steps
        return rise * (1 + cos(pi * max(0.0, n - (steps - cooling)) / max(cooling, 1))) / 2
