"""Models: pure functions of (parameters, inputs, dropout masks), written for ONE trial; the engine stacks lanes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from spaces import plugins
from workers.parameters import Parameter, Parameters
from workers.randomness import Streams
from workers.scorers import Scorer
from workers.tasks import Batch, Task

HIGHEST_RATE = 0.99
"""Dropout rates end here: one byte decides an element, and it can tell rates up to 255/256 apart."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place where dropout acts: the shape of its mask for one trial, and the trial's rate."""

    shape: tuple[int, ...]
    rate: float | Tensor
    actual: tuple[int | Tensor, ...] = ()
    """The shape without padding, by which the trial draws its mask; empty where nothing is padded."""


class FusedGradient(Protocol):
    """Loss and gradient of L lanes at once: an exact rewrite of what torch makes of a model and its task's loss."""

    def __call__(
        self, model: Any, task: Task, parameters: Tensor, batch: Batch, streams: Sequence[Streams], /
    ) -> tuple[Tensor, Tensor]:
        """Gradient [L, P] and loss [L] at parameters [L, P], on a training batch [L, N, ...].

        `model` and `task`: with their knobs and actual sizes as [L]; `streams`: one per dropout site, in use or not, in
        their order.
        """
        ...


class Model(ABC):
    """A model's configuration, a frozen dataclass; sizes and plug-in names are structural, rates are knobs."""

    @property
    def may_pad(self) -> bool:
        """Whether zeros may be added to its tensors, and to its task's, without a change of what it computes."""
        return False

    @abstractmethod
    def check(self, task: Task) -> None:
        """Raise PluginError if the model cannot be trained on this task."""

    @abstractmethod
    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        """The parameters in a fixed order."""

    @abstractmethod
    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        """All the model's sites, for inputs [batch, length]; their rates are switches."""

    @abstractmethod
    def logits(self, parameters: Parameters, inputs: Tensor, keep: Mapping[str, Tensor]) -> Tensor:
        """Next-token logits [N, s, v] for `inputs` [N, s]; `keep`: a bool mask per site in use (none: evaluate)."""

    def for_validation(self) -> Model:
        """The model that validation uses, with the same parameters: some scorers are others there."""
        parts = {field: getattr(self, field) for field in plugins.rules(type(self))}
        scorers = {field: part.for_validation() for field, part in parts.items() if isinstance(part, Scorer)}
        return plugins.replaced(self, scorers)

    def fused(self, task: Task, dtype: torch.dtype, device: torch.device) -> FusedGradient | None:
        """A faster way to the gradient of this model on this task and device; None: torch's own."""
        return None


def dropped(values: Tensor, keep: Tensor) -> Tensor:
    """Values with the dropped ones zero. Inverted dropout (Srivastava et al. 2014) also divides by 1 - rate.

    That factor, `scale_of`, is best multiplied into the small matrix that makes the values.
    """
    return values * keep.to(values.dtype)


def scale_of(rate: float | Tensor, like: Tensor) -> float | Tensor:
    """1 / (1 - rate) in the precision of `like`."""
    return (1 / (1 - rate)).to(like.dtype) if isinstance(rate, Tensor) else 1 / (1 - rate)


def in_use(switch: float | Tensor) -> bool:
    """Whether a switch is on; inside the engine one that is on is a tensor, one that is off the plain number 0."""
    return isinstance(switch, Tensor) or switch != 0
