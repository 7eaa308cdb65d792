"""Loss and gradient of linearised attention in C++, and outputs, on a CPU (workers/numerics/native/linearised.hpp).

Legend: L lanes, P parameters, N prompts, s positions, f features.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.data.tasks import Batch, Task, VectorTask
from workers.networks.gradients.plans import (
    LOSSES,
    call,
    find_library_obstacle,
    function_of,
    gradient_tensors,
    per_lane,
    starts_of,
    unknown_loss,
)
from workers.networks.models.linearised_attention import LinearisedAttention
from workers.numerics.randomness import Streams

_PARAMETERS = ("score_of_inputs", "score_of_label", "value_of_inputs", "value_of_label")
_SIZES = ("lanes", "batch", "length", "features", "total", "loss")
_TENSORS = (
    *("places", "parameters", "gradient", "loss_values", "inputs", "targets", "weights", "lengths"),
    *("temperatures", "outputs_values"),
)


class _Plan(ctypes.Structure):
    """`LinearisedPlan` of linearised.hpp."""

    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


def find_obstacle(model: LinearisedAttention, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the model's gradient on this task is not computed here, or None."""
    if reason := find_library_obstacle("linearised", dtype, device):
        return reason
    if task.position_loss not in LOSSES or not isinstance(task, VectorTask) or task.outputs != 1:
        return unknown_loss(task)
    if not model.centred:
        return "linear attention that is not centred is not in the native step"
    return "an estimated temperature is not in the native step" if model.estimated else None


class NativeLinearisedAttention:
    """One structure of a model on one task; what follows from it alone is made once."""

    def __init__(self, model: LinearisedAttention, task: Task, dtype: torch.dtype) -> None:
        assert task.position_loss, "find_obstacle() knows all others"
        self._function = function_of("linearised", dtype)
        self._dtype = dtype
        starts, total = starts_of(model.parameters(task))
        self._places = torch.tensor([starts[name] for name in _PARAMETERS])
        self._sizes = {"total": total, "loss": LOSSES.index(task.position_loss)}

    def gradient(
        self, model: Any, task: Task, parameters: Tensor, batch: Batch, streams: Sequence[Streams]
    ) -> tuple[Tensor, Tensor]:
        tensors = gradient_tensors(task, parameters, batch)
        self._call(model, parameters, batch, tensors)
        return tensors["gradient"], tensors["loss_values"]

    def outputs(self, model: Any, task: Task, parameters: Tensor, batch: Batch) -> Tensor:
        wanted = task.evaluated_positions(batch)
        outputs = parameters.new_empty(*batch["inputs"].shape[:3], 1)
        weights = wanted.to(self._dtype).contiguous() if wanted is not None else None
        self._call(model, parameters, batch, {"outputs_values": outputs, "weights": weights})
        return outputs

    def _call(self, model: Any, parameters: Tensor, batch: Batch, wanted: Mapping[str, Tensor | None]) -> None:
        """Compute what is wanted: those tensors that a gradient, or outputs, have of their own."""
        inputs = batch["inputs"].to(self._dtype).contiguous()
        lanes, prompts, length, features = inputs.shape
        plan = _Plan(**self._sizes, lanes=lanes, batch=prompts, length=length, features=features)
        tensors = {
            "places": self._places,
            "parameters": parameters.contiguous(),
            "inputs": inputs,
            "lengths": batch["lengths"].contiguous() if "lengths" in batch else None,
            "temperatures": per_lane(model.temperature, lanes).to(self._dtype).contiguous(),
            **wanted,
        }
        call(self._function, plan, tensors)
