"""A schedule: the factor on the peak learning rate at each step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.training.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Example(Schedule):
    """1 / sqrt(1 + n / scale) at step n, whatever the number of steps."""

    scale: float = knob(100.0, low=0, open_low=True)

    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        return (1 + step.double() / self.scale) ** -0.5
