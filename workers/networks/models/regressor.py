"""The transformer over vectors of numbers: a linear read-in and a linear read-out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from workers.data.tasks import Batch, Task, VectorTask
from workers.networks.models import require_task
from workers.networks.models._blocks import Linear
from workers.networks.models._layers import Layered
from workers.numerics.parameters import Parameter, Parameters


@final
@dataclass(frozen=True, kw_only=True)
class Regressor(Layered):
    """A decoder-only transformer on real numbers, for learning in context.

    The stream starts with x W_in + b_in and outputs are linear in its end, as in Garg et al. 2022,
    "What can transformers learn in-context?", and paper 000. In their code these two maps stand
    outside GPT-2 and start as torch.nn.Linear, uniform on +-1 / sqrt(inputs); so they do with every
    `initialisation` but `truncated_normal`, which starts them as all other maps.
    """

    @property
    def causal(self) -> bool:
        return True

    def check(self, task: Task) -> None:
        require_task(VectorTask, task, self)
        super().check(task)

    def input_parameters(self, task: Task) -> Mapping[str, Parameter]:
        features = require_task(VectorTask, task, self).features
        return self._end("read_in", features, self.width)

    def output_parameters(self, task: Task) -> Mapping[str, Parameter]:
        outputs = require_task(VectorTask, task, self).outputs
        return self._end("read_out", self.width, outputs)

    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        weight = parameters["read_in"]
        return batch["inputs"].to(weight.dtype) @ weight + parameters["read_in_bias"]

    def write(self, parameters: Parameters, stream: Tensor) -> Tensor:
        return stream @ parameters["read_out"] + parameters["read_out_bias"]

    def _end(self, name: str, inputs: int, outputs: int) -> Mapping[str, Parameter]:
        """Return the parameters of a map at an end of the model, which Muon leaves alone."""
        start, bias = self.starts.ends(inputs)
        sizes = {"inputs": inputs, "outputs": outputs, "matrices": 0}
        return Linear(name=name, **sizes, bias=True, start=start, bias_start=bias).parameters()
