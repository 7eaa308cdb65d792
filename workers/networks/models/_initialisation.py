"""Initial maps and embeddings of layered models, by the name of the code or paper they are from.

Norms start at a gain of 1 and a bias of 0, other biases at 0 unless given; Canon layers, scorers
and activations start by themselves. docs/experiments/starts.md has the sources.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from workers.numerics.parameters import Constant, Normal, Start, Uniform

_ZERO = Constant(value=0)
_TRUNCATED = Normal()
_NORMAL = Normal(bound=math.inf)


@final
@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """The starts of a transformer's parameters."""

    map: Callable[[int], Start]
    """The start of a weight matrix, given its number of inputs."""
    residual: Callable[[int], Start]
    """The start of a layer's two matrices to the residual stream, given the number of layers."""
    embedding: Start
    """The start of token embeddings and learned positions."""
    unembedding: Start
    ends: Callable[[int], tuple[Start, Start]]
    """The starts of a regressor's read-in and read-out, weight and bias, given their inputs."""


def linear(inputs: int) -> Start:
    """Return the start of a `torch.nn.Linear`'s weight or bias: uniform on +-1 / sqrt(inputs)."""
    return Uniform(bound=inputs**-0.5)


def _linear_ends(inputs: int) -> tuple[Start, Start]:
    return linear(inputs), linear(inputs)


INITIALISATIONS: Mapping[str, Initialisation] = {
    "truncated_normal": Initialisation(
        map=lambda inputs: _TRUNCATED,
        residual=lambda depth: _TRUNCATED,
        embedding=_TRUNCATED,
        unembedding=_TRUNCATED,
        ends=lambda inputs: (_TRUNCATED, _ZERO),
    ),
    "normal": Initialisation(
        map=lambda inputs: _NORMAL,
        residual=lambda depth: _NORMAL,
        embedding=_NORMAL,
        unembedding=_NORMAL,
        ends=_linear_ends,
    ),
    "gpt2": Initialisation(
        map=lambda inputs: _NORMAL,
        residual=lambda depth: Normal(deviation=0.02 / math.sqrt(2 * depth), bound=math.inf),
        embedding=_NORMAL,
        unembedding=_NORMAL,
        ends=_linear_ends,
    ),
    "modded_nanogpt": Initialisation(
        map=linear,
        residual=lambda depth: _ZERO,
        embedding=Normal(deviation=1.0, bound=math.inf),
        unembedding=_ZERO,
        ends=_linear_ends,
    ),
}
