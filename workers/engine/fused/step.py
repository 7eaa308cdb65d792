"""The fused step of a pack: its kernel's plan, and the state after it.

It trains the minimal transformer on set complement, whose data the kernel draws itself. Legend: L
lanes, P parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from workers.data.tasks.set_complement import SetComplement
from workers.engine.fused.plan import LARGEST_SIZE, TILE_LIMITS, Limits, Plan, Sizes, Workspace, lay_out, lay_out_tiles
from workers.networks.gradients.minimal import own_sizes, stack_knobs
from workers.networks.gradients.plans import per_lane
from workers.networks.models.minimal import Minimal
from workers.networks.scorers.average import Average
from workers.networks.scorers.softmax import Softmax
from workers.numerics.native import address
from workers.numerics.tracing import tree_map
from workers.training.native_update import AHEAD, SCALARS, Scalars, knows
from workers.training.optimizers.adam import Adam
from workers.training.optimizers.adamw import AdamW
from workers.training.recipe import Recipe, State, layout_of

Knobs = dict[str, Tensor]
"""Dotted path -> one value [L] per lane, float64."""
Launch = Callable[[Workspace, Plan], None]
"""Runs the kernel on a plan while its tensors live; raises RuntimeError if the GPU fails."""
_OF_EMBEDDING, _OF_ROWS, _WHOLE_TOKENS = 1, 2, 4
"""Bits of the places of dropout, and of dropout of entries of tokens' matrices."""


def find_obstacle(recipe: Recipe) -> str | None:
    """Return why trials of this structure have no fused step; None if `arrange` alone decides."""
    model = recipe.model
    if not isinstance(model, Minimal) or type(recipe.task) is not SetComplement:
        return "the fused step knows the minimal transformer on set complement alone"
    if type(model.scorer) not in (Softmax, Average):
        return "the fused step knows the scorers softmax and average alone"
    if type(recipe.optimizer) not in (AdamW, Adam) or not knows(recipe) or not recipe.learning.is_plain:
        return "the fused step knows AdamW and Adam, and averages of weights that are learned alone"
    if not recipe.is_plain_step:
        return "the fused step knows no training.accumulate and no training.autocast"
    largest = max(model.width, model.key_width, model.value_width, recipe.task.length, recipe.task.vocabulary)
    if largest > LARGEST_SIZE:
        return f"the fused step knows sizes up to {LARGEST_SIZE}, not {largest}"
    return None if recipe.dtype is torch.float32 else f"the fused step knows float32, not {recipe.dtype}"


def find_tile_obstacle(recipe: Recipe, limits: Limits) -> str | None:
    """Return why packs of this recipe, with padded sizes, have no fused step in tiles of TF32."""
    if reason := find_obstacle(recipe):
        return reason
    model, task = recipe.model, recipe.task
    assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
    sizes = {"length": task.length, "vocabulary": task.vocabulary, "width": model.width}
    plain = type(model.scorer) is Softmax and not model.embedding_dropout and not model.residual_dropout
    if not plain or any(sizes[name] > most for name, most in TILE_LIMITS.items()):
        most = ", ".join(f"{name} {most}" for name, most in TILE_LIMITS.items())
        return f"tiles know softmax without dropout, up to {most}"
    return None if arrange(recipe, limits, tf32=True) else "its arrays do not fit into the GPU's shared memory"


def arrange(recipe: Recipe, limits: Limits, *, tf32: bool = False) -> Workspace | None:
    """Place the kernel's arrays, for `tf32` in tiles, of a padded recipe; None if too large."""
    model, task = recipe.model, recipe.task
    assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
    widths = model.width, model.key_width, model.value_width
    occurrences = bool(model.embedding_dropout) and model.dropout_unit == "occurrence"
    sizes = Sizes(recipe.training.batch, task.length, task.vocabulary, *widths)
    return lay_out_tiles(sizes, limits) if tf32 else lay_out(sizes, limits, occurrences=occurrences)


class FusedStep:
    """Many steps of L lanes at a launch; `recipe`, with padded sizes, has no obstacle."""

    most_blocks = 1 << 30
    """Most blocks of a launch, so that only those that a GPU holds at once need scratch memory."""

    def __init__(self, recipe: Recipe, device: torch.device, kind: str, workspace: Workspace, launch: Launch) -> None:
        """`kind`: as `Step.kind`; `workspace`: the layout of the kernel's arrays."""
        self.kind = kind
        self.recipe, self.device, self.workspace, self.launch = recipe, device, workspace, launch
        self._scalars = Scalars(recipe, device)
        model = recipe.model
        assert isinstance(model, Minimal), "there is no obstacle"
        on = _OF_EMBEDDING * bool(model.embedding_dropout) + _OF_ROWS * bool(model.residual_dropout)
        self._dropped = on + _WHOLE_TOKENS * (model.dropout_unit == "token")
        shapes = [parameter.shape for parameter in layout_of(recipe).parameters.values()]
        ends = itertools.accumulate(map(math.prod, shapes))
        starts, columns = [0, *ends][:-1], [shape[-1] for shape in shapes]
        self._arrays = {"starts": starts, "columns": columns, "places": workspace.places}

    @property
    def setup_seconds(self) -> float:
        """Seconds of the last recording of the scalars, for a new number of lanes."""
        return self._scalars.seconds

    def advance(self, knobs: Knobs, seeds: Tensor, state: State, most: int) -> tuple[State, int]:
        """Return the state after a launch, and its steps, at most `most`; `state` is unchanged."""
        lanes, bound, steps = len(seeds), self.recipe.bind(knobs), min(most, AHEAD)
        scalars = self._scalars.of_next(knobs, state.step)
        after: State = tree_map(lambda tensor: tensor.contiguous().clone(), state)
        plan = Plan(lanes=lanes, steps=steps, batch=self.recipe.training.batch)
        plan.averages, plan.decoupled = scalars.shape[-1] - SCALARS, isinstance(bound.optimizer, AdamW)
        plan.parameters, plan.scratch_floats = after.parameters.shape[1], self.workspace.scratch_floats
        plan.blocks = min(lanes, self.most_blocks)
        plan.dropped, plan.sequences = self._dropped, self.workspace.sequences
        for name, numbers in self._arrays.items():
            getattr(plan, name)[:] = numbers
        tensors = {
            **self._lane_tensors(bound, lanes),
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

    def _lane_tensors(self, bound: Recipe, lanes: int) -> dict[str, Tensor]:
        """Return the kernel's tensors of knobs and actual sizes."""
        model, task, device = bound.model, bound.task, self.device
        assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
        sizes = own_sizes(model, task, task.actual_context)
        rates = model.embedding_dropout, model.residual_dropout
        scorer, knobs = model.scorer, stack_knobs(model, lanes, device)  # [L, 4]
        # The kernel's softmax knows temperature and uniform attention by the scale of logits.
        knobs[:, 0] *= 1 / per_lane(scorer.temperature, lanes, device) if isinstance(scorer, Softmax) else 0
        return {
            "sizes": torch.stack([per_lane(size, lanes, device) for size in sizes], -1).long(),
            "rates": torch.stack([per_lane(rate, lanes, device) for rate in rates], -1),
            "knobs": knobs.float(),
        }
