"""Learned parameters: their shapes, how they start, and whether weight decay applies to them."""

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
    """How a parameter's entries start."""

    @abstractmethod
    def values(self, uniform: Tensor) -> Tensor:
        """Return initial entries [L, n] float64 from numbers [L, n] uniform on (0, 1), one for each entry."""


@final
@dataclass(frozen=True, kw_only=True)
class Normal(Start):
    """Normal with this standard deviation, truncated at `bound` deviations; infinity does not truncate."""

    deviation: float = 0.02
    bound: float = 2.0

    def values(self, uniform: Tensor) -> Tensor:
        return truncated_normal(uniform, self.deviation, self.bound)


def lecun_normal(inputs: int) -> Normal:
    """Of variance 1 / inputs after truncation, as flax starts its maps. Source: jax.nn.initializers.lecun_normal."""
    return Normal(deviation=inputs**-0.5 / 0.8796256610342398)


@final
@dataclass(frozen=True, kw_only=True)
class Uniform(Start):
    """Uniform on (-bound, bound)."""

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
    """These numbers along the last axis of the parameter, the same for every index of its other axes."""

    numbers: tuple[float, ...]

    def values(self, uniform: Tensor) -> Tensor:
        row = torch.tensor(self.numbers, dtype=uniform.dtype, device=uniform.device)
        return row.repeat(uniform.shape[-1] // len(self.numbers)).expand_as(uniform)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """Shape of one parameter, how it starts, and whether weight decay applies to it."""

    shape: tuple[int, ...]
    start: Start = Normal()
    decay: bool = True
    matrices: int = 0
    """How many maps between hidden channels lie in it side by side, for an optimizer of matrices (Muon); else 0."""
    frozen: bool = False
    """Whether it keeps the value that it starts with."""
    nonlinearity: bool = False
    """Whether it is a non-linearity's, which `workers.training.learning` may learn apart from the weights."""


def within(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """Return the entries of a part, by the part's own names: `scorer.b` becomes `b` for the prefix `scorer`."""
    return {name.removeprefix(f"{prefix}."): value for name, value in named.items() if name.startswith(f"{prefix}.")}


def under(prefix: str, named: Mapping[str, Value]) -> dict[str, Value]:
    """Return the entries of a part as the whole names them: `b` becomes `scorer.b` for the prefix `scorer`."""
    return {f"{prefix}.{name}": value for name, value in named.items()}
