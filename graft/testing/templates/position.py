"""A position: how a model tells where a token stands. Override the hooks that it needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.positions import Position
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Example(Position):
    """Adds `slope` times its index to every channel of a token."""

    slope: float = knob(0.1)

    def add_to(self, stream: Tensor, learned: Parameters) -> Tensor:
        index = torch.arange(stream.shape[-2], dtype=stream.dtype, device=stream.device)
        return stream + (self.slope * index).to(stream.dtype)[:, None]
