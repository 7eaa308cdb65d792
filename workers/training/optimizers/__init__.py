"""Optimizers, written for ONE trial on its parameters as one flat vector; the engine stacks lanes.

Flat, since an update is then a dozen operations on [L, P] however many matrices there are. Compiled
code repeats the formulas: native/update.hpp with the scalars of native_update.py on a CPU,
cuda_update.cu for traced steps of a GPU, and cuda/training.hpp for fused ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from spaces.plugins.fields import knob, part
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.training.schedules import Schedule
from workers.training.schedules import exact as exact

Moments = Mapping[str, Tensor]


class Descent(NamedTuple):
    """A step down a gradient: the optimizer's input beside its own configuration."""

    parameters: Tensor  # [P]
    gradient: Tensor  # [P], not clipped
    moments: Moments
    step: Tensor  # scalar int64: steps made before
    steps: Tensor  # scalar: of the whole schedule


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """The base of optimizers: a peak rate, its schedule, and clipping of the gradient's norm."""

    learning_rate: float = knob(1e-3, low=0)
    schedule: Schedule = part(Schedule, "linear")
    clip_norm: float = knob(1.0, low=0, open_low=True)

    @property
    def padding_obstacle(self) -> str | None:
        """The reason why zeros added to the parameters would change a step, if there is one."""
        return None

    def check(self, parameters: Iterable[Parameter]) -> None:
        """Raise PluginError if it cannot train a model with these parameters; most train all."""
        return

    @final
    def descend(self, descent: Descent, layout: Layout) -> tuple[Tensor, Moments]:
        """Return parameters [P] and moments after the step: clipping, schedule and `update`."""
        gradient = clip(descent.gradient, torch.as_tensor(self.clip_norm))
        rate = self.scheduled_rate(descent.step, descent.steps)
        return self.update(descent.parameters, gradient, descent.moments, rate, descent.step, layout)

    @final
    def scheduled_rate(self, step: Tensor, steps: Tensor) -> Tensor:
        """Return the rate of update n = `step`, or that of the last one after the run.

        A free lane is stepped on past its run, and scalars are computed ahead: a schedule, such as
        one that reads a table, need not know such updates.
        """
        last = (steps - 1).to(step.dtype)
        return self.learning_rate * self.schedule.factor(torch.minimum(step, last), steps)

    @abstractmethod
    def start(self, parameters: Tensor, layout: Layout) -> Moments:
        """Return the optimizer's state before the first step, from the initial parameters [P]."""

    @abstractmethod
    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        """Return parameters [P] and moments after step n, from 0, by a clipped gradient [P]."""


def clip(gradient: Tensor, norm: Tensor) -> Tensor:
    """Return the gradient [P] scaled to a norm of at most `norm`, with torch's 1e-6."""
    length = torch.linalg.vector_norm(gradient)
    return gradient * (norm.to(length.dtype) / (length + 1e-6)).clamp(max=1.0)
