"""Positions: how a model tells where something stands."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Parameter, Values


class Position:
    """Each does one of three things, and nothing by default."""

    def parameters(self, width: int, longest: int) -> dict[str, Parameter]:
        """Return what it learns, for inputs of up to `longest` positions."""
        return {}

    def add_to(self, stream: Tensor, learned: Values) -> Tensor:
        """Return the stream [N, s, d] with positions."""
        return stream

    def rotate(self, vectors: Tensor) -> Tensor:
        """Return queries or keys [N, h, s, c] with positions."""
        return vectors

    def bias(self, heads: int, like: Tensor) -> Tensor | None:
        """[h, s, s] to add to logits, of values `like` [N, h, s, c]."""
        return None


@dataclass(kw_only=True)
class NonePosition(Position):
    """No positions."""


@dataclass(kw_only=True)
class LearnedPosition(Position):
    """A learned vector for each."""

    longest: int

    def parameters(self, width: int, longest: int) -> dict[str, Parameter]:
        return {"table": Parameter((self.longest or longest, width))}

    def add_to(self, stream: Tensor, learned: Values) -> Tensor:
        return stream + learned["table"][: stream.shape[1]]


def turn(length: int, channels: int, base: float) -> Tensor:
    """[length, channels / 2] the angles t / base^(2 i / channels)."""
    pairs = torch.arange(0, channels, 2, dtype=torch.float64)
    return torch.outer(torch.arange(length, dtype=torch.float64), base ** (-pairs / channels))


@dataclass(kw_only=True)
class SinusoidalPosition(Position):
    """scale sin and scale cos of the angles, in turns (Vaswani et al. 2017)."""

    base: float
    scale: float

    def add_to(self, stream: Tensor, learned: Values) -> Tensor:
        length, width = stream.shape[1:]
        angles = turn(length, width + width % 2, self.base)
        waves = torch.empty(length, 2 * angles.shape[1], dtype=torch.float64)
        waves[:, 0::2], waves[:, 1::2] = angles.sin(), angles.cos()
        return stream + (self.scale * waves[:, :width]).to(stream.dtype)


@dataclass(kw_only=True)
class RotaryPosition(Position):
    """Channels i and i + c/2 turned by the angle of i (Su et al. 2021)."""

    base: float

    def rotate(self, vectors: Tensor) -> Tensor:
        length, channels = vectors.shape[-2:]
        angles = turn(length, channels, self.base)
        cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        first, second = vectors[..., : channels // 2], vectors[..., channels // 2 :]
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


@dataclass(kw_only=True)
class AlibiPosition(Position):
    """-m (q - k), with a slope m for each head (Press et al. 2022)."""

    def bias(self, heads: int, like: Tensor) -> Tensor:
        power = 2 ** int(log2(heads))
        slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
        slopes += [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)][: heads - power]
        positions = torch.arange(like.shape[-2])
        distance = (positions[:, None] - positions).to(like.dtype)
        return -torch.tensor(slopes, dtype=like.dtype)[:, None, None] * distance
