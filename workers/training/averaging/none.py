"""No average: only the training parameters are evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.training.averaging import Averaging, Shadow, Variant


@dataclass(frozen=True, kw_only=True)
class NoAveraging(Averaging):
    """Keeps nothing and adds no variant."""

    @property
    def variants(self) -> Sequence[Variant]:
        return ()

    def start(self, parameters: Tensor) -> Shadow:
        return {}

    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        return shadow

    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        raise AssertionError("there is no variant to evaluate")
