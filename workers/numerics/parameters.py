"""Learned parameters: their shapes, initial values and weight decay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, final

import torch
from torch import Tensor

from workers.numerics.randomness import truncated_normal

Parameters = Mapping[str, Tensor]

Value = TypeVar("Value")


class Start(ABC):
    """The distribution of a parameter's initial entries."""

    @abstractmethod
    def values(self, uniform: Tensor) -> Tensor:
        """Return initial entries [L, n], float64, from as many numbers uniform on (0, 1)."""


@final
@dataclass(frozen=True, kw_only=True)
class Normal(Start):
    """A normal distribution, truncated at `bound` standard deviations; infinity: untruncated."""

    deviation: float = 0.02
    bound: float = 2.0

    def values(self, uniform: Tensor) -> Tensor:
        return truncated_normal(uniform, self.deviation, self.bound)


def lecun_normal(inputs: int) -> Normal:
    """Return flax's LeCun normal: variance 1 / inputs after truncation (jax.nn.initializers)."""
    return Normal(deviation=inputs**-0.5 / 0.8796256610342398)


@final
@dataclass(frozen=True, kw_only=True)
class Uniform(Start):
    """A uniform distribution on (-bound, bound)."""

    bound: float

    def values(self, uniform: Tensor) -> Tensor:
        return (2 * uniform - 1) * self.bound


@final
@dataclass(frozen=True, kw_only=True)
class Constant(Start):
    """The same value everywhere."""

    value: float

    def values(self, uniform: Tensor) -> Tensor:
        return torch.full_like(uniform, self.value)


@final
@dataclass(frozen=True, kw_only=True)
class Given(Start):
    """These numbers along the last axis, the same for every index of the other axes."""

    numbers: tuple[float, ...]

    def values(self, uniform: Tensor) -> Tensor:
        row = torch.tensor(self.numbers, dtype=uniform.dtype, device=uniform.device)
        return row.repeat(uniform.shape[-1] // len(self.numbers)).expand_as(uniform)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """The shape of one parameter, its initial values, and whether weight decay applies to it."""

    shape: tuple[int, ...]
    start: Start = Normal()
    decay: bool = True
    matrices: int = 0
    """The number of maps between hidden channels side by side in it, for Muon; else 0."""
    frozen: bool = False
    """True if it keeps its initial value."""
    nonlinearity: bool = False
    """True if it is a non-linearity's, which `workers.training.learning` may learn differently."""


def within(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """Return a part's entries by their own names: `scorer.b` is `b` for the prefix `scorer`."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in named.items() if name.startswith(start)}


def under(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """Return a part's entries by the whole's names: `b` is `scorer.b` for the prefix `scorer`."""
    return {f"{prefix}.{name}": value for name, value in named.items()}
