"""The models that are computed in C++, and why one is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spaces.plugins import name_of
from workers.data.tasks import Batch, Task
from workers.networks.gradients import layered, linearised, minimal, pooling
from workers.networks.models import Model
from workers.networks.models._layers import Layered
from workers.networks.models.attention_pooling import AttentionPooling
from workers.networks.models.linearised_attention import LinearisedAttention
from workers.networks.models.minimal import Minimal
from workers.numerics.randomness import Streams


class NativeModel(Protocol):
    """Loss, gradient and outputs of L lanes at once, of one structure of a model and its task."""

    def gradient(
        self, model: Any, task: Any, parameters: Tensor, batch: Batch, streams: Sequence[Streams], /
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient [L, P] and the loss [L] at parameters [L, P], on a training batch [L, N, ...].

        `model` and `task`: with their knobs and actual sizes as [L]; `streams`: one per dropout site, in use or not, in
        their order.
        """
        ...

    def outputs(self, model: Any, task: Any, parameters: Tensor, batch: Batch, /) -> Tensor:
        """Compute outputs [L, N, ...] without dropout at parameters [L, P] on a set [L, N, ...].

        Zero at positions that the task's metrics do not read (`Task.evaluated_positions`).
        """
        ...


class _Kind(NamedTuple):
    """A class of models, why one of them is not native, and what computes it."""

    model: type[Model]
    find_obstacle: Callable[[Any, Task, torch.dtype, torch.device], str | None]
    make: Callable[[Any, Task, torch.dtype], NativeModel]


_KINDS = (
    _Kind(Minimal, minimal.find_obstacle, minimal.NativeMinimal),
    _Kind(Layered, layered.find_obstacle, layered.NativeLayered),
    _Kind(AttentionPooling, pooling.find_obstacle, pooling.NativeAttentionPooling),
    _Kind(LinearisedAttention, linearised.find_obstacle, linearised.NativeLinearisedAttention),
)


def find_obstacle(model: Model, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why a model's gradient and outputs on this task and device are not native, in a few words, or None."""
    kind = _kind_of(model)
    return kind.find_obstacle(model, task, dtype, device) if kind else f"the model {name_of(model)} has no native step"


def native_model(model: Model, task: Task, dtype: torch.dtype, device: torch.device) -> NativeModel | None:
    """Return what computes a model natively; None where there is an obstacle."""
    kind = _kind_of(model)
    return kind.make(model, task, dtype) if kind and not kind.find_obstacle(model, task, dtype, device) else None


def _kind_of(model: Model) -> _Kind | None:
    """Return the kind of a packaged model; a class of an outside file may have changed what it inherits."""
    if not type(model).__module__.startswith("workers."):
        return None
    return next((kind for kind in _KINDS if isinstance(model, kind.model)), None)
