"""Learning-rate schedules: the factor on the peak rate at each step."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Schedule(ABC):
    """A schedule's configuration, a frozen dataclass; its knobs differ from lane to lane."""

    @abstractmethod
    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        """Factor in [0, 1] for the update that makes parameters n+1 out of n; `step` n, `steps` in all, scalars."""


def exact(number: float | Tensor) -> Tensor:
    """Return a number as float64, which it is inside the engine; torch would make a plain one, or a quotient of
    integers, float32.
    """
    return torch.as_tensor(number, dtype=torch.float64)
