"""Loss and gradient of attention pooling in C++, and outputs, on a CPU (workers/numerics/native/pooling.hpp).

Legend: L lanes, P parameters, N sets, n items.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.data.tasks import Batch, SetTask, Task
from workers.networks.activations.gelu import Gelu
from workers.networks.gradients import activating
from workers.networks.gradients.plans import (
    call,
    find_library_obstacle,
    function_of,
    gradient_tensors,
    per_lane,
    starts_of,
    unknown_loss,
)
from workers.networks.gradients.scoring import (
    begin_compiling,
    described,
    features_of,
    functions_of,
    knobs_of_heads,
    learned_by,
    placing_of,
)
from workers.networks.gradients.scoring import find_obstacle as find_scorer_obstacle
from workers.networks.models.attention_pooling import AttentionPooling
from workers.numerics.randomness import Streams

_MAPS = ("item_in", "item_out", "query_in", "query_out", "query", "key_value", "output", "class_in", "class_out")
_SIZES = ("lanes", "batch", "items", "width", "features", "asked", "classes", "total")
_TENSORS = (
    *(
        "places",
        "scorer",
        "learned",
        "phi",
        "placing",
        "activation",
        "parameters",
        "gradient",
        "loss_values",
        "inputs",
        "queries",
        "lengths",
    ),
    *("targets", "weights", "knobs", "outputs_values"),
)


_ACTIVATION = Gelu(form="tanh")
"""Of the model's own maps."""


class _Plan(ctypes.Structure):
    """`PoolingPlan` of pooling.hpp."""

    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


def find_obstacle(model: AttentionPooling, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the model's gradient on this task is not computed here, or None."""
    if device.type == "cpu":
        begin_compiling(model.scorer, dtype)
        activating.begin_compiling(_ACTIVATION, dtype)
    if reason := find_library_obstacle("pooling", dtype, device):
        return reason
    if task.position_loss != "cross_entropy":
        return unknown_loss(task)
    return activating.find_obstacle(_ACTIVATION, dtype) or find_scorer_obstacle(model.scorer, dtype)


class NativeAttentionPooling:
    """One structure of a model on one task; what follows from it alone is made once."""

    def __init__(self, model: AttentionPooling, task: Task, dtype: torch.dtype) -> None:
        assert isinstance(task, SetTask), "the model checked its task"
        self._function = function_of("pooling", dtype)
        self._dtype = dtype
        starts, total = starts_of(model.parameters(task))
        places: list[int] = []
        for name in _MAPS:
            places += [starts[name], starts[f"{name}_bias"]]
            if name == "key_value":  # two maps side by side
                places += [starts[name] + model.width, starts[f"{name}_bias"] + model.width]
        (learned,), phi = learned_by(model.scorer, heads=1), features_of(model.scorer)
        learned += activating.learned_by(phi, "scorer.phi")
        self._tables = {
            "places": torch.tensor(places),
            "scorer": described([functions_of(model.scorer, dtype)]),
            "activation": activating.described(_ACTIVATION, dtype),
            "phi": activating.described(phi, dtype),
            "learned": torch.tensor([starts[name] for name, _ in learned], dtype=torch.int64),
        }
        self._sizes = {
            "width": model.width,
            "features": task.features,
            "asked": task.query_features,
            "classes": task.classes,
            "total": total,
        }

    def gradient(
        self, model: Any, task: Task, parameters: Tensor, batch: Batch, streams: Sequence[Streams]
    ) -> tuple[Tensor, Tensor]:
        tensors = gradient_tensors(task, parameters, batch)
        self._call(model, parameters, batch, tensors)
        return tensors["gradient"], tensors["loss_values"]

    def outputs(self, model: Any, task: Task, parameters: Tensor, batch: Batch) -> Tensor:
        outputs = parameters.new_empty(*batch["inputs"].shape[:2], self._sizes["classes"])
        self._call(model, parameters, batch, {"outputs_values": outputs})
        return outputs

    def _call(self, model: Any, parameters: Tensor, batch: Batch, wanted: Mapping[str, Tensor]) -> None:
        """Compute what is wanted: those tensors that a gradient, or outputs, have of their own."""
        inputs = batch["inputs"].to(self._dtype).contiguous()
        lanes, sets, items = inputs.shape[:3]
        knobs = [per_lane(number, lanes) for number in knobs_of_heads(model.scorer, 1)]
        plan = _Plan(**self._sizes, lanes=lanes, batch=sets, items=items)
        tensors = self._tables | {
            "parameters": parameters.contiguous(),
            "inputs": inputs,
            "queries": batch["query"].to(self._dtype).contiguous(),
            "lengths": batch["lengths"].contiguous(),
            "placing": placing_of(model.scorer, 1, items, self._dtype),
            "knobs": torch.stack(knobs, -1).to(self._dtype).contiguous() if knobs else None,
            **wanted,
        }
        call(self._function, plan, tensors)
