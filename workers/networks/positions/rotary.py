"""Rotary positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import knob
from workers.networks.positions import Position
from workers.networks.positions._angles import angles


@dataclass(frozen=True, kw_only=True)
class Rotary(Position):
    """Turn channels i and i + c/2 of queries and keys by the angle t / base^(2i/c).

    Source: Su et al. 2021, equation 34, with halves of a head as pairs (GPT-NeoX, Llama).
    """

    base: float = knob(10000.0, low=1, open_low=True)

    def check(self, longest: int, head_width: int) -> None:
        if head_width % 2:
            raise PluginError(f"model.position: rotary needs heads of an even width, but width / heads is {head_width}")

    def rotate(self, vectors: Tensor) -> Tensor:
        length, channels = vectors.shape[-2:]
        turns = angles(length, channels, self.base, vectors.device)
        cosine, sine = turns.cos().to(vectors.dtype), turns.sin().to(vectors.dtype)
        first, second = vectors.split(channels // 2, dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
