"""The fused step of a pack: what all its kernels are given, and the state that they leave.

Legend: L lanes, P parameters.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from workers.engine.fused.memory import Workspace
from workers.numerics.native import address
from workers.numerics.tracing import tree_map
from workers.training.native_update import AHEAD, SCALARS, Scalars, knows
from workers.training.optimizers.adam import Adam
from workers.training.optimizers.adamw import AdamW
from workers.training.recipe import Recipe, State

Knobs = dict[str, Tensor]
"""Dotted path -> one value [L] per lane, float64."""


class TrainingPlan(ctypes.Structure):
    """`Training` of training.hpp."""

    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in ("lanes", "steps", "batch", "averages", "decoupled", "parameters", "scratch_floats", "blocks")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("seeds", "scalars", "parameters_of", "first", "second", "shadow", "step", "loss_sum"),
                *("diverged_at", "scratch"),
            )
        ),
    ]


Launch = Callable[[Workspace, TrainingPlan], None]
"""Runs the kernel on a plan, whose tensors it does not outlive; raises RuntimeError where the GPU does."""


def find_training_obstacle(recipe: Recipe) -> str | None:
    """Return why no fused step trains as this recipe does, whatever its model; None if there is no such reason."""
    if type(recipe.optimizer) not in (AdamW, Adam) or not knows(recipe) or not recipe.learning.is_plain:
        return "the fused step knows AdamW and Adam, and averages of weights that are learned alone"
    if not recipe.steps_whole:
        return "the fused step knows no training.accumulate and no training.autocast"
    return None if recipe.dtype is torch.float32 else f"the fused step knows float32, not {recipe.dtype}"


class FusedStep(ABC):
    """Many steps of L lanes at a launch; `recipe`, with padded sizes, has no obstacle."""

    most_blocks = 1 << 30
    """Blocks of a launch at most, so that only those which a GPU holds at once need scratch memory."""

    def __init__(self, recipe: Recipe, device: torch.device, kind: str, workspace: Workspace, launch: Launch) -> None:
        """`kind`: as `Step.kind`; `workspace`: where the kernel's arrays lie on the device."""
        self.kind = kind
        self.recipe, self.device, self.workspace, self.launch = recipe, device, workspace, launch
        self._scalars = Scalars(recipe, device)

    @abstractmethod
    def plan(
        self, knobs: Knobs, bound: Recipe, seeds: Tensor, state: State, steps: int
    ) -> tuple[TrainingPlan, Mapping[str, Any]]:
        """Return the kernel's own plan, with numbers alone, and the tensors that it points to; None for those there
        are not.

        `bound`: the recipe with these knobs; `state`: before the launch, which makes so many steps.
        """

    def most_steps(self, lanes: int) -> int:
        """Return how many steps a launch may make, at most `AHEAD`."""
        return AHEAD

    @property
    def width_seconds(self) -> float:
        """The seconds that the last new number of lanes took to record its scalars."""
        return self._scalars.seconds

    def advance(self, knobs: Knobs, seeds: Tensor, state: State, most: int) -> tuple[State, int]:
        """Return the state after a launch, and how many steps it made, at most `most`; the argument is left as it
        was.
        """
        lanes, bound = len(seeds), self.recipe.bind(knobs)
        steps = min(most, self.most_steps(lanes))
        scalars = self._scalars.of_next(knobs, state.step)
        after: State = tree_map(lambda tensor: tensor.contiguous().clone(), state)
        plan, own = self.plan(knobs, bound, seeds, state, steps)
        plan.lanes, plan.steps, plan.batch = lanes, steps, self.recipe.training.batch
        plan.averages, plan.decoupled = scalars.shape[-1] - SCALARS, isinstance(bound.optimizer, AdamW)
        plan.parameters, plan.scratch_floats = after.parameters.shape[1], self.workspace.scratch_floats
        plan.blocks = min(lanes, self.most_blocks)
        tensors = {
            **own,
            "seeds": seeds.contiguous(),
            "scalars": scalars,
            "parameters_of": after.parameters,
            "first": after.moments["first"],
            "second": after.moments["second"],
            "shadow": after.shadow.get("ema"),
            "step": after.step,
            "loss_sum": after.loss_sum,
            "diverged_at": after.diverged_at,
            "scratch": after.parameters.new_empty(plan.blocks * self.workspace.scratch_floats),
        }
        for name, tensor in tensors.items():
            setattr(plan, name, address(tensor) if tensor is not None else None)
        self.launch(self.workspace, plan)
        return after, steps
