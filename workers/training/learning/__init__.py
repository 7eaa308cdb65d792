"""Learning: what of a model is trained, on which data, and how.

Written for ONE trial on its parameters as one flat vector; only data is drawn for all lanes at
once. Legend: L lanes, N sequences, P parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from workers.data.tasks import Batch, Task
from workers.networks.models import Model
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter, Parameters
from workers.training.optimizers import Descent, Moments, Optimizer

Loss = Callable[[Parameters, Batch], Tensor]
"""The loss, a scalar, of one model's parameters by name on a batch [N, ...]."""
EvaluateModel = Callable[[Parameters], dict[str, Tensor]]
"""Metric -> values [N], of one model's parameters by name."""


class Learning(ABC):
    """A way of learning's configuration, a frozen dataclass."""

    @property
    def is_plain(self) -> bool:
        """True if a trial is one model that descends one loss, as a native gradient needs it."""
        return False

    @property
    def passes(self) -> int:
        """Number of passes of a step through a model that memory has to hold."""
        return 1

    def check(self, model: Model, task: Task, *, padded: bool) -> None:
        """Raise PluginError if the model cannot be trained so on this task, `padded` or not."""
        return

    @abstractmethod
    def parameters(self, model: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
        """Return what is trained, in a fixed order, for a model with these parameters."""

    @abstractmethod
    def training(self, task: Task, seeds: Tensor, batch: int, step: Tensor) -> Batch:
        """Return the data [L, N, ...] of trials with `seeds` [L] at steps [L], with `inputs`."""

    @abstractmethod
    def gradient(self, layout: Layout, flat: Tensor, batch: Batch, loss: Loss) -> tuple[Tensor, Tensor]:
        """Return gradient [P] and loss, a scalar, at parameters [P], frozen ones too, on data."""

    @abstractmethod
    def start(self, optimizer: Optimizer, layout: Layout, flat: Tensor) -> Moments:
        """Return the optimizer's state before the first step, from the initial parameters [P]."""

    @abstractmethod
    def update(self, optimizer: Optimizer, layout: Layout, descent: Descent) -> tuple[Tensor, Moments]:
        """Return parameters [P] and optimizer's state after clipping, schedule and optimizer."""

    def resets_at(self, step: int) -> bool:
        """Return True if something is reset before step n (from 0)."""
        return False

    def reset(
        self, optimizer: Optimizer, layout: Layout, flat: Tensor, moments: Moments, seed: int, step: int
    ) -> tuple[Tensor, Moments]:
        """Return parameters [P] and the optimizer's state after the reset before step n."""
        return flat, moments

    @abstractmethod
    def evaluate(self, layout: Layout, flat: Tensor, evaluate_model: EvaluateModel) -> dict[str, Tensor]:
        """Return metric -> values [N] of parameters [P]."""
