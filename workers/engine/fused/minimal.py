"""The fused step of the minimal transformer on set complement, which draws its data itself.

Legend: L lanes, P parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.data.tasks.set_complement import SetComplement
from workers.engine.fused.memory import Limits, Workspace
from workers.engine.fused.minimal_plan import MinimalPlan, Sizes, lay_out
from workers.engine.fused.step import FusedStep, Knobs, Launch, TrainingPlan, find_training_obstacle
from workers.networks.gradients.minimal import own_sizes, stack_knobs
from workers.networks.gradients.plans import per_lane
from workers.networks.models import Model
from workers.networks.models.minimal import Minimal
from workers.networks.scorers.average import Average
from workers.networks.scorers.softmax import Softmax
from workers.training.recipe import Recipe, State, layout_of

_OF_EMBEDDING, _OF_ROWS, _WHOLE_TOKENS = 1, 2, 4


def find_obstacle(recipe: Recipe) -> str | None:
    """Return why trials of this structure have no fused step; None if they have one, as far as shared memory
    suffices.
    """
    model = recipe.model
    if not isinstance(model, Minimal) or type(recipe.task) is not SetComplement:
        return "the fused step knows the minimal transformer on set complement alone"
    if type(model.scorer) not in (Softmax, Average):
        return "the fused step knows the scorers softmax and average alone"
    return find_training_obstacle(recipe)


def arrange(recipe: Recipe, limits: Limits) -> Workspace | None:
    """Place the kernel's arrays; None if they do not fit. `recipe`, with padded sizes, has no obstacle."""
    model, task = recipe.model, recipe.task
    assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
    widths = model.width, model.key_width, model.value_width
    occurrences = bool(model.embedding_dropout) and model.dropout_unit == "occurrence"
    sizes = Sizes(recipe.training.batch, task.length, task.vocabulary, *widths)
    return lay_out(sizes, limits, occurrences=occurrences)


class MinimalStep(FusedStep):
    """Of the minimal transformer."""

    def __init__(self, recipe: Recipe, device: torch.device, kind: str, workspace: Workspace, launch: Launch) -> None:
        super().__init__(recipe, device, kind, workspace, launch)
        shapes = [parameter.shape for parameter in layout_of(recipe).parameters.values()]
        ends = itertools.accumulate(map(math.prod, shapes))
        self._arrays = {
            "starts": [0, *ends][:-1],
            "columns": [shape[-1] for shape in shapes],
            "places": workspace.places,
        }

    def plan(
        self, knobs: Knobs, bound: Recipe, seeds: Tensor, state: State, steps: int
    ) -> tuple[TrainingPlan, Mapping[str, Any]]:
        plan = MinimalPlan(dropped=_dropped(self.recipe.model), sequences=self.workspace.sequences)
        for name, numbers in self._arrays.items():
            getattr(plan, name)[:] = numbers
        return plan, self._lane_tensors(bound, len(seeds))

    def _lane_tensors(self, bound: Recipe, lanes: int) -> dict[str, Tensor]:
        """Return the kernel's tensors of knobs and actual sizes."""
        model, task, device = bound.model, bound.task, self.device
        assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
        sizes = own_sizes(model, task, task.actual_context)
        rates = model.embedding_dropout, model.residual_dropout
        return {
            "sizes": torch.stack([per_lane(size, lanes, device) for size in sizes], -1).long(),
            "rates": torch.stack([per_lane(rate, lanes, device) for rate in rates], -1),
            "knobs": self._knobs(model, lanes).float(),
        }

    def _knobs(self, model: Minimal, lanes: int) -> Tensor:
        """[L, 4] of the model; the kernel's softmax knows temperature and uniform attention by the scale of logits."""
        knobs = stack_knobs(model, lanes, self.device)
        scorer = model.scorer
        knobs[:, 0] *= 1 / per_lane(scorer.temperature, lanes, self.device) if isinstance(scorer, Softmax) else 0
        return knobs


def _dropped(model: Model) -> int:
    """Bits that say where dropout is on, and whether it drops entries of tokens' matrices."""
    assert isinstance(model, Minimal), "there is no obstacle"
    on = _OF_EMBEDDING * bool(model.embedding_dropout) + _OF_ROWS * bool(model.residual_dropout)
    return on + _WHOLE_TOKENS * (model.dropout_unit == "token")
