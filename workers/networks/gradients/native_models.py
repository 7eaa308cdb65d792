"""The models that are computed in C++, and the reasons why others are not."""

from __future__ import annotations

from collections.abc import Callable
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
from workers.numerics.randomness import SiteStreams


class NativeModel(Protocol):
    """Loss, gradient and outputs of L lanes at once, of one structure of a model and its task."""

    def gradient(
        self, model: Any, task: Any, parameters: Tensor, batch: Batch, streams: SiteStreams, /
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient [L, P] and the loss [L] at parameters [L, P] on a batch [L, N, ...].

        `model` and `task` have knobs and actual sizes as [L]; `streams`: one per site, used or not.
        """
        ...

    def outputs(self, model: Any, task: Any, parameters: Tensor, batch: Batch, /) -> Tensor:
        """Compute outputs [L, N, ...] without dropout at parameters [L, P] on a set [L, N, ...].

        Zero at positions that the task's metrics do not read (`Task.evaluated_positions`).
        """
        ...


class _Kind(NamedTuple):
    """A class of models, its function that names an obstacle, and its native implementation."""

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
    """Return why a model's gradient and outputs are not native here, in a few words, or None."""
    if kind := _kind_of(model):
        return kind.find_obstacle(model, task, dtype, device)
    return f"the model {name_of(model)} has no native step"


def native_model(model: Model, task: Task, dtype: torch.dtype, device: torch.device) -> NativeModel | None:
    """Return the native implementation of a model; None if there is an obstacle."""
    if (kind := _kind_of(model)) and not kind.find_obstacle(model, task, dtype, device):
        return kind.make(model, task, dtype)
    return None


def _kind_of(model: Model) -> _Kind | None:
    """Return a packaged model's kind; an outside subclass may have changed what it inherits."""
    if not type(model).__module__.startswith("workers."):
        return None
    return next((kind for kind in _KINDS if isinstance(model, kind.model)), None)
