"""Learned tensors: their shapes, and how they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, prod, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.oracles.pieces.streams import INITIAL, draw_uniform, open_stream

Values = Mapping[str, Tensor]
"""Parameters, or masks, by name."""
Batch = dict[str, Tensor]
"""The data of a step, or a set: `inputs` and what else a task has."""


def start_normal(deviation: float = 0.02, bound: float = 2.0) -> Callable[[Tensor], Tensor]:
    """Return normal numbers by inversion, truncated at so many standard deviations."""
    tail = 0.5 * (1 - erf(bound / sqrt(2)))
    return lambda uniform: deviation * torch.special.ndtri(tail + (1 - 2 * tail) * uniform)


def start_constant(value: float) -> Callable[[Tensor], Tensor]:
    """Return the same number everywhere."""
    return lambda uniform: torch.full_like(uniform, value)


def start_uniform(bound: float) -> Callable[[Tensor], Tensor]:
    """Uniform on (-bound, bound)."""
    return lambda uniform: bound * (2 * uniform - 1)


def start_given(numbers: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a start with these numbers."""
    return lambda uniform: numbers.to(uniform)


class Parameter(NamedTuple):
    """A learned tensor before it is one."""

    shape: tuple[int, ...]
    start: Callable[[Tensor], Tensor] = start_normal()
    decays: bool = True
    matrices: int = 0
    """How many maps between hidden channels lie in it side by side, for Muon."""
    frozen: bool = False
    form: bool = False
    """Whether it is the form of a non-linearity."""


def start_parameters(
    parameters: Mapping[str, Parameter], seed: int, step: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return each entry from a number of its own: the tensors take the stream's numbers one after another."""
    sizes = [prod(parameter.shape) for parameter in parameters.values()]
    uniform = torch.from_numpy(draw_uniform(open_stream(seed, INITIAL, step), sum(sizes)))
    return {
        name: parameter.start(numbers).reshape(parameter.shape).to(dtype)
        for (name, parameter), numbers in zip(parameters.items(), uniform.split(sizes), strict=True)
    }


def within(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a part by its own names: `scorer.b` is `b` within `scorer`."""
    return {name[len(prefix) + 1 :]: value for name, value in named.items() if name.startswith(f"{prefix}.")}


def under(prefix: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a part as the whole names them."""
    return {f"{prefix}.{name}": value for name, value in named.items()}
