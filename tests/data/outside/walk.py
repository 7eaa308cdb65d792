"""A task unlike any of Graft's: to say how far a random walk has come, from its noisy steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from noise import steps_of
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import knob, size
from spaces.records import Params
from workers.data.tasks import Batch, VectorTask
from workers.numerics.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class Walk(VectorTask):
    """The largest distance from the origin so far, of a walk whose steps are seen through noise."""

    EXAMPLES: ClassVar[Examples] = ({"length": 5},)

    length: int = size(8)
    weight: float = knob(1.0, low=0, open_low=True)

    @property
    def context(self) -> int:
        return self.length

    @property
    def longest(self) -> int:
        return 2 * self.length

    @property
    def features(self) -> int:
        return 2

    @property
    def outputs(self) -> int:
        return 1

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        return self._walks(streams, batch, self.length)

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self._walks(streams, batch, self.length)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {f"length={self.longest}": self._walks(streams, batch, self.longest)}

    def _walks(self, streams: Streams, batch: int, length: int) -> Batch:
        steps = steps_of(streams, 2 * batch, length)
        seen = torch.stack([steps[:, :batch], steps[:, :batch] + 0.1 * steps[:, batch:]], -1)
        return {"inputs": seen, "targets": steps[:, :batch].cumsum(-1).abs().cummax(-1).values}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.weight * (outputs[..., 0] - batch["targets"]).square().mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"square": (outputs[..., 0] - batch["targets"].to(outputs.dtype)).square().mean(-1)}

    def facts(self) -> Params:
        return {"chance": 1.0}
