"""Learned absolute positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import size
from workers.networks.positions import Position
from workers.numerics.parameters import Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Learned(Position):
    """A learned vector per position, added to the token's embedding (GPT-2: Radford et al. 2019).

    Positions beyond any training input keep their start, as in paper 002's tests of longer inputs.
    """

    longest: int = size(0, low=0)
    """The number of positions; 0: as many as the task's longest input has."""

    def check(self, longest: int, head_width: int) -> None:
        if 0 < self.longest < longest:
            raise PluginError(
                f"model.position.longest: {self.longest} must be 0 or at least {longest}, the task's longest input"
            )

    def parameters(self, width: int, longest: int) -> Mapping[str, Parameter]:
        return {"table": Parameter(shape=(self.longest or longest, width))}

    def add_to(self, stream: Tensor, learned: Parameters) -> Tensor:
        return stream + learned["table"][: stream.shape[-2]]
