"""Native gradients and outputs: exact rewrites in C++ of what torch computes for a model and its task's loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from workers.data.tasks import Batch, Task
from workers.numerics.randomness import Streams


class NativeGradient(Protocol):
    """Loss and gradient of L lanes at once: an exact rewrite of what torch makes of a model and its task's loss."""

    def __call__(
        self, model: Any, task: Task, parameters: Tensor, batch: Batch, streams: Sequence[Streams], /
    ) -> tuple[Tensor, Tensor]:
        """Gradient [L, P] and loss [L] at parameters [L, P], on a training batch [L, N, ...].

        `model` and `task`: with their knobs and actual sizes as [L]; `streams`: one per dropout site, in use or not, in
        their order.
        """
        ...


class NativeOutputs(Protocol):
    """Outputs of L lanes at once without dropout: an exact rewrite of the model's `outputs`."""

    def __call__(self, model: Any, task: Task, parameters: Tensor, batch: Batch, /) -> Tensor:
        """Compute outputs [L, N, ...] at parameters [L, P] on a set [L, N, ...]; `model`, `task` as for the gradient.

        Zero at positions that the task's metrics do not read (`Task.evaluated_positions`).
        """
        ...
