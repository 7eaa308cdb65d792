"""Learning-rate schedules: the factor on the peak rate at each step.

`cuda_update.py` names them for compiled code, which repeats the formulas of the packaged ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Schedule(ABC):
    """A schedule's configuration, a frozen dataclass; its knobs differ from lane to lane."""

    @abstractmethod
    def factor(self, step: Tensor, steps: Tensor) -> Tensor:
        """Return the factor in [0, 1] of update n = `step`, from 0, of `steps` in all, scalars."""


def exact(number: float | Tensor) -> Tensor:
    """Return a number as float64, as in the engine; torch makes plain ones float32."""
    return torch.as_tensor(number, dtype=torch.float64)
