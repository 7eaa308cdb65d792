"""Loss, gradient and outputs of attention pooling in C++ on a CPU (pooling.hpp).

Legend: L lanes, P parameters, N sets, n items.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from workers.data.tasks import Batch, SetTask, Task
from workers.networks.activations.gelu import Gelu
from workers.networks.gradients import activating, plans, scoring
from workers.networks.models.attention_pooling import AttentionPooling
from workers.numerics.randomness import SiteStreams

_MAPS = ("item_in", "item_out", "query_in", "query_out", "query", "key_value", "output", "class_in", "class_out")
_SIZES = ("lanes", "batch", "items", "width", "features", "asked", "classes", "total")
_TENSORS = (
    *("offsets", "scorer", "learned", "phi", "placing", "activation", "parameters", "gradient"),
    *("loss_values", "inputs", "queries", "lengths", "targets", "weights", "knobs", "outputs_values"),
)
_ACTIVATION = Gelu(form="tanh")
"""The activation of the model's own maps."""


def find_obstacle(model: AttentionPooling, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Compile the scorer and activation; return why the gradient is not native, or None."""
    if device.type == "cpu":
        scoring.begin_compiling(model.scorer, dtype)
        activating.begin_compiling(_ACTIVATION, dtype)
    if reason := plans.find_library_obstacle("pooling", dtype, device):
        return reason
    if task.position_loss != "cross_entropy":
        return plans.unknown_loss(task)
    return activating.find_obstacle(_ACTIVATION, dtype) or scoring.find_obstacle(model.scorer, dtype)


class NativeAttentionPooling(plans.PlannedModel):
    """Attention pooling by `PoolingPlan` of pooling.hpp."""

    def __init__(self, model: AttentionPooling, task: Task, dtype: torch.dtype) -> None:
        assert isinstance(task, SetTask), "the model checked its task"
        super().__init__("pooling", dtype, _SIZES, _TENSORS)
        starts, total = plans.starts_of(model.parameters(task))
        offsets: list[int] = []
        for name in _MAPS:
            offsets += [starts[name], starts[f"{name}_bias"]]
            if name == "key_value":  # two maps side by side
                offsets += [starts[name] + model.width, starts[f"{name}_bias"] + model.width]
        (learned,), phi = scoring.learned_by(model.scorer, heads=1), scoring.features_of(model.scorer)
        learned += activating.learned_by(phi, "scorer.phi")
        self._tables = {
            "offsets": torch.tensor(offsets),
            "scorer": scoring.described([model.scorer], dtype),
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

    def _shape_of_outputs(self, inputs: Tensor) -> tuple[int, ...]:
        return (*inputs.shape[:2], self._sizes["classes"])

    def _describe(
        self, model: AttentionPooling, batch: Batch, streams: SiteStreams | None
    ) -> tuple[Mapping[str, int], Mapping[str, Tensor | None]]:
        lanes, _, items = batch["inputs"].shape[:3]
        knobs = [plans.per_lane(knob, lanes) for knob in scoring.knobs_of_heads(model.scorer, 1)]
        return {"items": items}, {
            **self._tables,
            "queries": batch["query"].to(self._dtype).contiguous(),
            "placing": scoring.placing_of(model.scorer, 1, items, self._dtype),
            "knobs": torch.stack(knobs, -1).to(self._dtype).contiguous() if knobs else None,
        }
