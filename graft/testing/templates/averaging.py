"""An average of the parameters over training, validated beside the raw ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.training.averaging import Averaging, Shadow, Variant


@dataclass(frozen=True, kw_only=True)
class Example(Averaging):
    """Keeps `share` of the average at each step, and adds the rest of the new parameters."""

    share: float = knob(0.9, low=0, high=1, open_high=True)

    @property
    def variants(self) -> Sequence[Variant]:
        return (Variant("ema"),)  # the name of its metrics' variant: ema or bema

    def start(self, parameters: Tensor) -> Shadow:
        return {"mean": parameters}

    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        share = torch.as_tensor(self.share, dtype=torch.float64).to(parameters.dtype)
        return {"mean": share * shadow["mean"] + (1 - share) * parameters}

    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        return shadow["mean"]
