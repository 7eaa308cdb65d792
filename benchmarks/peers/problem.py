"""What the peers search: a task, the model that learns it in plain PyTorch, and the space.

Legend: N sequences, s positions, v tokens, d width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor, nn

from benchmarks.peers.plan import (
    Draw,
    Dropout,
    one_minus_power_of_ten,
    positive_part,
    power_of_ten,
    uniform,
    whole_power_of_ten,
)

Knobs = Mapping[str, float]
"""Dotted path as in a space file -> value."""
Batch = tuple[Tensor, ...]
"""Inputs [N, s] first; then what the loss or the metrics read."""

OPTIMIZER = {
    "optimizer.learning_rate": power_of_ten(-4, -2),
    "optimizer.beta1": one_minus_power_of_ten(-2, 0),
    "optimizer.beta2": one_minus_power_of_ten(-4, -1),
    "optimizer.weight_decay": power_of_ten(-6, 0),
    "optimizer.epsilon": power_of_ten(-12, -8),
    "optimizer.clip_norm": power_of_ten(-2, 2),
    "optimizer.schedule.warmup": whole_power_of_ten(-2, 2),
    "optimizer.schedule.end_multiplier": power_of_ten(-4, 0),
    "averaging.rho": power_of_ten(0, 3),
    "averaging.kappa": uniform(0, 1),
    "averaging.eta": uniform(0, 1),
}
"""As in the space `set_complement`, restricted so that a thousand steps learn something and no trial diverges."""

RATES: Mapping[Dropout, Draw | None] = {"table1": positive_part(-0.5, 0.5), "on": uniform(0.05, 0.5), "off": None}
"""Dropout rates; Table 1 of paper 003 has none in half of all draws."""


class PlainModel(nn.Module, ABC):
    """A model of plain PyTorch: inputs [N, s] to logits [N, s, v]."""

    @abstractmethod
    def decayed(self) -> list[nn.Parameter]:
        """Return the parameters that weight decay applies to."""


def truncated_normal(model: nn.Module, deviation: float = 0.02) -> None:
    """Draw all matrices of a model anew, truncated at two deviations."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)


class Problem(ABC):
    """A task with a model and a space; one small class each."""

    direction: Literal["minimize", "maximize"]
    objective: str
    """A metric and its variant, `tvd/bema`."""
    batch: int
    """Sequences of an optimizer step."""
    dropout_sites: tuple[str, ...]
    """Fields of Graft's model that are dropout rates."""

    @abstractmethod
    def fixed(self) -> dict[str, dict[str, Any]]:
        """Return the sections `task` and `model` of Graft's space, without the draws."""

    @abstractmethod
    def model(self, knobs: Knobs) -> PlainModel:
        """Return a fresh model; rates that are not among the knobs are 0."""

    @abstractmethod
    def training(self, device: str) -> Batch:
        """Return a fresh training minibatch."""

    @abstractmethod
    def validation(self, batch: int, device: str) -> Batch:
        """Return a trial's validation set, of `batch` sequences unless it is fixed."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Training loss, a scalar."""

    @abstractmethod
    def metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Means over the validation set, scalars."""

    def draws(self, dropout: Dropout) -> dict[str, Draw]:
        """All hyperparameters, by dotted path."""
        rate = RATES[dropout]
        rates = {f"model.{site}": rate for site in self.dropout_sites} if rate else {}
        return {"model.norm_epsilon": power_of_ten(-10, -4), **rates, **OPTIMIZER}
