"""The transformer over vectors of numbers: a linear read-in and a linear read-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.data.tasks import Batch, Task, VectorTask
from workers.networks.models import over
from workers.networks.models._layers import Layered
from workers.numerics.parameters import Constant, Parameter, Parameters


@final
@dataclass(frozen=True, kw_only=True)
class Regressor(Layered):
    """A decoder-only transformer on real numbers, for learning in context.

    The stream starts with x W_in + b_in and outputs are linear in its end, as in Garg et al. 2022, "What can
    transformers learn in-context?", and paper 000. The outputs at a position depend on inputs up to it.
    """

    @property
    def causal(self) -> bool:
        return True

    def check(self, task: Task) -> None:
        over(VectorTask, task, self)
        super().check(task)

    def reading(self, task: Task) -> Mapping[str, Parameter]:
        return self._linear("read_in", over(VectorTask, task, self).features, self.width)

    def writing(self, task: Task) -> Mapping[str, Parameter]:
        return self._linear("read_out", self.width, over(VectorTask, task, self).outputs)

    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        weight = parameters["read_in"]
        return batch["inputs"].to(weight.dtype) @ weight + parameters["read_in_bias"]

    def written(self, parameters: Parameters, stream: Tensor) -> Tensor:
        return stream @ parameters["read_out"] + parameters["read_out_bias"]

    @staticmethod
    def _linear(name: str, inputs: int, outputs: int) -> dict[str, Parameter]:
        bias = Parameter(shape=(outputs,), start=Constant(value=0), decay=False)
        return {name: Parameter(shape=(inputs, outputs)), f"{name}_bias": bias}
