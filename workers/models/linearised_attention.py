"""One layer of attention whose softmax is linear, with merged matrices: the model of paper 004."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.fields import flag, knob, text
from spaces.plugins import replaced
from workers.models import Model, Site, over
from workers.parameters import Parameter, Parameters
from workers.tasks import Batch, Task, VectorTask
from workers.temperature import sweep


@final
@dataclass(frozen=True, kw_only=True)
class LinearisedAttention(Model):
    """r_q -> mean u + (1 / temperature) mean (z - mean z) u, u_i = r_i V, z_i = r_i . M r_q, over the others i.

    Attention with the weights (1 + (z - mean z) / temperature) / n in place of softmax(z / temperature), and products
    of its matrices learned as one: M of keys and queries, V of values and outputs. Source: paper 004, equations 5 and
    7. A position attends to all others but not to itself: the one that is asked has no label to give. As all is linear,
    it is computed by one matrix of sums over the positions, without a weight for every two of them.

    `temperatures`: more of them at which the trained weights are validated, `1.5 2 4`, and `temperature=estimated` in
    any case. `estimated` is the paper's heuristic (Appendix J), which knows no label and no true distribution: the
    temperature times the second moment of the scores between two inputs over the mean score of an input with itself,
    here over all inputs of each prompt. Scores are those that enter the prediction, times the weight of the label in V,
    and inputs x are all but the last feature, which is the label, taken from their mean.

    Legend: N prompts, s positions, f features, o outputs.
    """

    temperature: float = knob(1.0, low=0, open_low=True)
    estimated: bool = flag(False)
    temperatures: str = text("")

    def __post_init__(self) -> None:
        sweep("model.temperatures", self.temperatures)

    def check(self, task: Task) -> None:
        over(VectorTask, task, self)

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        task = over(VectorTask, task, self)
        return {
            "query_key": Parameter(shape=(task.features, task.features)),
            "value": Parameter(shape=(task.features, task.outputs)),
        }

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        return {}

    def evaluations(self) -> Mapping[str, Model]:
        numbers = sweep("model.temperatures", self.temperatures)
        swept = {label: replaced(self, {"temperature": number}) for label, number in numbers.items()}
        return {"": self, **swept, "temperature=estimated": replaced(self, {"estimated": True})}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        matrix, value = parameters["query_key"], parameters["value"]
        rows, given = batch["inputs"].to(matrix.dtype), _given(batch).to(matrix.dtype)
        count = given.sum(-2, keepdim=True)  # [N, 1, 1]
        mean = (rows * given).sum(-2, keepdim=True) / count
        centred = (rows - mean) * given  # a shift of the keys changes no weight
        others = (count - given).clamp(min=1)  # [N, s, 1]
        queries = rows @ matrix.mT  # [N, s, f]: M r_q
        own = (queries * centred).sum(-1, keepdim=True) * (centred @ value)
        whole = queries @ (centred.mT @ (centred @ value))  # [N, s, o]
        covariance = (whole - own * (1 + given / others)) / others
        average = (mean - centred / others) @ value  # of the others
        return average + covariance / self._temperature(centred, given, parameters)

    def _temperature(self, centred: Tensor, given: Tensor, parameters: Parameters) -> float | Tensor:
        """As it is, or [N, 1, o] if it is estimated."""
        if not self.estimated:
            return self.temperature
        inputs, matrix, weight = centred[..., :-1], parameters["query_key"][:-1, :-1], parameters["value"][-1]
        scores = inputs @ matrix @ inputs.mT  # [N, s, s]
        selves, count = scores.diagonal(dim1=-2, dim2=-1), given.sum((-2, -1))
        first = selves.sum(-1) / count
        second = (scores.square().sum((-2, -1)) - selves.square().sum(-1)) / (count * (count - 1)).clamp(min=1)
        ratio = (second / first)[..., None, None] * weight
        return self.temperature * torch.where((ratio > 0) & ratio.isfinite(), ratio, 1)


def _given(batch: Batch) -> Tensor:
    """[N, s, 1] bool: which positions there are, at least the first."""
    inputs = batch["inputs"]
    place = torch.arange(inputs.shape[-2], device=inputs.device)[:, None]
    lengths = batch.get("lengths", torch.full_like(inputs[:, 0, 0], inputs.shape[-2], dtype=torch.int64))
    return place < lengths[:, None, None].clamp(min=1)
