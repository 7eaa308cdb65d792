"""Loss, gradient and outputs of linearised attention in C++ on a CPU (linearised.hpp).

Legend: L lanes, P parameters, N prompts, s positions, f features.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workers.data.tasks import Batch, Task, VectorTask
from workers.networks.gradients import plans
from workers.networks.models.linearised_attention import LinearisedAttention
from workers.numerics.randomness import SiteStreams

_PARAMETERS = ("score_of_inputs", "score_of_label", "value_of_inputs", "value_of_label")
_SIZES = ("lanes", "batch", "length", "features", "total", "loss", "centred")
_TENSORS = (
    *("offsets", "parameters", "gradient", "loss_values", "inputs", "targets", "weights"),
    *("lengths", "temperatures", "outputs_values"),
)


def find_obstacle(model: LinearisedAttention, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the model's gradient on this task is not computed here, or None."""
    if reason := plans.find_library_obstacle("linearised", dtype, device):
        return reason
    if task.position_loss not in plans.LOSSES or not isinstance(task, VectorTask) or task.outputs != 1:
        return plans.unknown_loss(task)
    return "an estimated temperature is not in the native step" if model.estimated else None


class NativeLinearisedAttention(plans.PlannedModel):
    """Linearised attention by `LinearisedPlan` of linearised.hpp."""

    def __init__(self, model: LinearisedAttention, task: Task, dtype: torch.dtype) -> None:
        assert task.position_loss, "find_obstacle() knows all others"
        super().__init__("linearised", dtype, _SIZES, _TENSORS)
        starts, total = plans.starts_of(model.parameters(task))
        self._offsets = torch.tensor([starts[name] for name in _PARAMETERS])
        self._sizes = {"total": total, "loss": plans.LOSSES.index(task.position_loss)}

    def _shape_of_outputs(self, inputs: Tensor) -> tuple[int, ...]:
        return (*inputs.shape[:3], 1)

    def _describe(
        self, model: LinearisedAttention, batch: Batch, streams: SiteStreams | None
    ) -> tuple[Mapping[str, int], Mapping[str, Tensor | None]]:
        lanes, _, length, features = batch["inputs"].shape
        temperatures = plans.per_lane(model.temperature, lanes).to(self._dtype).contiguous()
        sizes = {"length": length, "features": features, "centred": int(model.centred)}
        return sizes, {"offsets": self._offsets, "temperatures": temperatures}
