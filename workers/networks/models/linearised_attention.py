"""One layer of attention whose softmax is linear, with merged matrices: the model of paper 004."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import name_of, replace
from spaces.plugins.fields import flag, knob, text
from workers.data.tasks import Batch, Task, VectorTask, is_given
from workers.networks.models import Model, Site, require_task
from workers.numerics.parameters import Constant, Parameter, Parameters
from workers.numerics.temperature import sweep


@final
@dataclass(frozen=True, kw_only=True)
class LinearisedAttention(Model):
    """(x_q, y_q) -> mean u + (1 / temperature) mean (z - mean z) u over the other positions i.

    y is the last feature. z_i = (x_i, y_i) . M x_q are logits and u_i = (x_i, y_i) V values:
    attention with weights (1 + (z - mean z) / temperature) / n in place of softmax(z /
    temperature), and the products of its matrices learned as one (paper 004, equations 5 and 7). A
    position has no logit for itself, since the one that is asked has no label to give. As all is
    linear, one matrix of sums over the positions is enough.

    V starts as the label, 1, and 0 for x; M small for x and 0 for y. If all starts small, some
    seeds end in a worse minimum, in which x has a value and y a logit.

    `temperatures`: more of them at which the trained weights are validated, `1.5 2 4`, and always
    `temperature=estimated`. `estimated` is the paper's heuristic (Appendix J), which needs neither
    labels nor the true distribution: the temperature times the second moment of the logits between
    two inputs over the mean logit of an input with itself, here over all inputs of each prompt,
    from their mean. These logits are of x alone, times the label's entry in V.

    Without `centred` it is linear attention, (1 / temperature) mean z u (equation 6), which a shift
    of the inputs' mean changes; its temperature is estimated from the inputs as they are.

    Legend: N prompts, s positions, f features, o outputs.
    """

    temperature: float = knob(1.0, low=0, open_low=True)
    estimated: bool = flag(False)
    temperatures: str = text("", plain=True)
    centred: bool = flag(True)

    def __post_init__(self) -> None:
        sweep("model.temperatures", self.temperatures)

    def check(self, task: Task) -> None:
        if require_task(VectorTask, task, self).features < 2:
            raise PluginError(
                f"model.name: {name_of(self)!r} reads inputs and a label, and {name_of(task)!r} has one feature"
            )

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        task = require_task(VectorTask, task, self)
        inputs = task.features - 1
        return {
            "score_of_inputs": Parameter(shape=(inputs, inputs)),
            "score_of_label": Parameter(shape=(1, inputs), start=Constant(value=0)),
            "value_of_inputs": Parameter(shape=(inputs, task.outputs), start=Constant(value=0)),
            "value_of_label": Parameter(shape=(1, task.outputs), start=Constant(value=1)),
        }

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        return {}

    def evaluations(self) -> Mapping[str, Model]:
        numbers = sweep("model.temperatures", self.temperatures)
        swept = {label: replace(self, {"temperature": t, "estimated": False}) for label, t in numbers.items()}
        return {"": self, **swept, "temperature=estimated": replace(self, {"estimated": True})}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        matrix, value = (
            torch.cat([parameters[f"{part}_of_inputs"], parameters[f"{part}_of_label"]]) for part in ("score", "value")
        )  # [f, f - 1], [f, o]
        rows, given = batch["inputs"].to(matrix.dtype), is_given(batch)[..., None].to(matrix.dtype)
        count = given.sum(-2, keepdim=True)  # [N, 1, 1]
        mean = (rows * given).sum(-2, keepdim=True) / count if self.centred else 0.0
        centred = (rows - mean) * given  # a shift of the keys changes no weight
        others = (count - given).clamp(min=1)  # [N, s, 1]
        queries = rows[..., :-1] @ matrix.mT  # [N, s, f]: M x_q
        diagonal = (queries * centred).sum(-1, keepdim=True) * (centred @ value)
        whole = queries @ (centred.mT @ (centred @ value))  # [N, s, o]
        if not self.centred:
            return (whole - diagonal) / others / self._temperature(centred, given, parameters)
        covariance = (whole - diagonal * (1 + given / others)) / others
        average = (mean - centred / others) @ value  # of the others
        return average + covariance / self._temperature(centred, given, parameters)

    def _temperature(self, centred: Tensor, given: Tensor, parameters: Parameters) -> float | Tensor:
        """Return the temperature, or [N, 1, o] if it is estimated from the rows that are given."""
        if not self.estimated:
            return self.temperature
        inputs = centred[..., :-1]
        logits = inputs @ parameters["score_of_inputs"] @ inputs.mT  # [N, s, s]
        selves, count = logits.diagonal(dim1=-2, dim2=-1), given.sum((-2, -1))
        first = selves.sum(-1) / count
        second = (logits.square().sum((-2, -1)) - selves.square().sum(-1)) / (count * (count - 1)).clamp(min=1)
        ratio = (second / first)[..., None, None] * parameters["value_of_label"]
        return self.temperature * torch.where((ratio > 0) & ratio.isfinite(), ratio, 1)
