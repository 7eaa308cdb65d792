"""Sinusoidal absolute positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.positions import Position
from workers.networks.positions._angles import angles
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Position):
    """Add scale * sin(t / base^(2i/d)) to channel 2i and scale * cos of the same to channel 2i + 1.

    Scale 1 is the original's, whose embeddings are multiplied by sqrt(d); beside embeddings of 0.02
    it is large. Source: Vaswani et al. 2017, section 3.5.
    """

    base: float = knob(10000.0, low=1, open_low=True)
    scale: float = knob(1.0, low=0)

    def add_to(self, stream: Tensor, learned: Parameters) -> Tensor:
        length, width = stream.shape[-2:]
        turns = angles(length, width + width % 2, self.base, stream.device)  # [s, ceil(d / 2)]
        waves = torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2)[..., :width]
        return stream + (self.scale * waves).to(stream.dtype)
