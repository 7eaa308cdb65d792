"""One optimizer step of all lanes of a pack. The engine chooses how, never what, it computes.

On a CPU `NativeStep` takes loss and gradient from hand-written code for the model and the task, if
there is some (of each model, where an architecture is learned), and `GeneratedStep` from a program
generated from a recording of one trial's. `TracedStep` does the rest, and what a GPU's `FusedStep`
(`workers.engine.fused`, many steps at a launch) does not know: it stacks
`workers.training.recipe.advance` over lanes with vmap, whatever the plug-ins are. On a GPU its
update is a kernel of its own, if there is one for the optimizer.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from workers.data.tasks import Batch
from workers.engine import fused
from workers.engine.dropout_masks import draw_masks, has_masks
from workers.engine.fused.step import FusedStep
from workers.engine.lane_programs import LaneGradient, gradient_by_program
from workers.engine.machine.devices import WIDTHS
from workers.engine.native_architecture import find_obstacle as find_learning_obstacle
from workers.engine.native_architecture import learned_by
from workers.networks.gradients.native_models import NativeModel, native_model
from workers.networks.gradients.native_models import find_obstacle as find_native_obstacle
from workers.numerics import native
from workers.numerics.fusion import fuses_on
from workers.numerics.processors import instruction_set
from workers.numerics.randomness import SiteStreams
from workers.numerics.tracing import Traced, load_gradients
from workers.training.cuda_update import cuda_update_of
from workers.training.native_update import NativeUpdate, libraries_of, update_of
from workers.training.recipe import (
    BoundRecipe,
    Masks,
    Recipe,
    State,
    advance,
    apply_gradient,
    gradient_of,
    layout_of,
    update_key,
)

USUAL_LANES = WIDTHS["cuda"]
"""Default width of a pack on a GPU; on a CPU the step does not depend on it."""
Knobs = dict[str, Tensor]
"""Dotted path -> one value [L] per lane, float64."""


class Step(Protocol):
    """An optimizer step of L lanes, each on its own batch and from its own streams."""

    @property
    def kind(self) -> str:
        """The kind, as far as bits depend on it: `native AVX2`, `traced cuda 9.0`."""
        ...

    @property
    def setup_seconds(self) -> float:
        """Seconds that the last new number of lanes cost, as far as known."""
        ...

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch, used: int | None = None) -> State:
        """Return the state after the step; large moments may be written in place.

        `used`: lanes from this index on are free, and a step may leave them undefined; None: none
        are.
        """
        ...


def step_of(recipe: Recipe, structure: str, device: torch.device, lanes: int = USUAL_LANES) -> Step | FusedStep:
    """Return the fastest step for packs of so many trials of this structure on this device."""
    kind, _ = choose_step(recipe, device, lanes)
    if kind == "fused":
        return fused.make_step(recipe, device)
    if kind == "native":
        computed = native_model(recipe.model, recipe.task, recipe.dtype, device)
        assert computed, "there is no obstacle"
        return NativeStep(recipe, learned_by(recipe, computed))
    if kind == "generated":
        generated = gradient_by_program(recipe, device)
        assert not isinstance(generated, str), "there is no obstacle"
        return GeneratedStep(recipe, generated)
    return TracedStep(recipe, structure, device)


def choose_step(recipe: Recipe, device: torch.device, lanes: int = USUAL_LANES) -> tuple[str, str]:
    """Return the kind of a recipe's fastest step on this device, and why it is no faster one.

    The kinds are `fused` on a GPU, `native` and `generated` on a CPU, and `traced`; the reason may
    be empty.
    """
    reason = find_obstacle(recipe, device, lanes)
    if not reason:
        return ("fused" if device.type == "cuda" else "native"), ""
    if device.type != "cpu":
        return "traced", reason
    generated = gradient_by_program(recipe, device)
    if isinstance(generated, str):
        return "traced", "; ".join(filter(None, [reason, generated]))
    return "generated", reason


def find_obstacle(recipe: Recipe, device: torch.device, lanes: int = USUAL_LANES) -> str | None:
    """Return why no hand-written step trains such packs on this device; None if one does.

    To find out, a GPU times steps, and a CPU compiles or loads functions of the model's parts.
    """
    if device.type == "cuda":
        return fused.find_obstacle(recipe, device, lanes)
    if reason := find_learning_obstacle(recipe):
        return reason
    if recipe.training.autocast != "none":
        return "the native steps know no training.autocast"
    return find_native_obstacle(recipe.model, recipe.task, recipe.dtype, device)


def begin_loading(config: Mapping[str, Any], device: str) -> None:
    """Load or compile in the background what such trials use on a CPU, for `step_of`."""
    where, recipe = torch.device(device), Recipe.of(config).pad()
    if where.type == "cpu":
        threading.Thread(target=find_obstacle, args=(recipe, where), name="load the gradient").start()
        native.begin(map(native.packaged, libraries_of(recipe)))


def describe_step(config: Mapping[str, Any], device: str, lanes: int = USUAL_LANES) -> str:
    """Describe how such packs train here: `native`, `fused`, or `generated` or `traced` and why."""
    where = torch.device(device)
    recipe = Recipe.of(config).pad()
    kind, reason = choose_step(recipe, where, lanes)
    if kind == "fused" and (rates := fused.rates_of(recipe, where, lanes)):
        return f"fused, {rates.describe()}"
    return f"{kind}: {reason}" if reason else kind


def method_of(config: Mapping[str, Any], device: str) -> str:
    """Return how such trials train on this device: `Step.kind` without the processor."""
    where = torch.device(device)
    kind, _ = choose_step(Recipe.of(config).pad(), where)
    return f"{kind} {where.type}" if where.type != "cpu" else kind


class TracedStep:
    """The step of one trial, stacked over lanes and replayed as a list of tensor operations."""

    def __init__(self, recipe: Recipe, structure: str, device: torch.device) -> None:
        self._recipe = recipe
        self._layout = layout_of(recipe, device)
        load_gradients()
        self._update = cuda_update_of(recipe, self._layout, device)
        what, of_one = ("gradient", gradient_of) if self._update else ("step", advance)
        stacked = vmap(lambda knobs, *others: of_one(recipe.bind(knobs), self._layout, *others))
        self._traced = Traced((what, structure, str(device)), stacked)
        # A GPU draws by operations that are better recorded, too; a CPU draws by native code.
        draw = functools.partial(draw_masks, recipe)
        self._draw = Traced(("masks", structure, str(device)), draw) if fuses_on(device) else draw
        self.kind = f"traced {instruction_set(device)}"

    @property
    def setup_seconds(self) -> float:
        return self._traced.seconds

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch, used: int | None = None) -> State:
        return self._advance(self._traced, knobs, seeds, state, batch)

    def unscripted(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> Callable[..., State]:
        """Return the step for these shapes; Python starts its operations one by one."""
        masks = self.masks(knobs, seeds, state, batch)
        arguments = (knobs, state, batch, masks) if self._update is None else (knobs, state.parameters, batch, masks)
        return functools.partial(self._advance, self._traced.unscripted(*arguments))

    def _advance(self, act: Callable[..., Any], knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> State:
        masks = self.masks(knobs, seeds, state, batch)
        if self._update is None:
            return act(knobs, state, batch, masks)
        gradient, loss = act(knobs, state.parameters, batch, masks)
        return self._update(knobs, state, gradient, loss)

    def masks(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> Masks:
        """Return the masks [L, ...] of the dropout sites that are on."""
        if not has_masks(self._recipe, batch["inputs"]):
            return {}
        return self._draw(knobs, seeds, state.step, batch["inputs"])


class GeneratedStep:
    """Loss and gradient by a program, lane by lane; the update is native, or traced."""

    def __init__(self, recipe: Recipe, gradient: LaneGradient) -> None:
        self._recipe, self._gradient = recipe, gradient
        self._update = _update_of(recipe)
        self.kind = f"generated {native.instruction_set()}"

    @property
    def setup_seconds(self) -> float:
        return self._update.seconds

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch, used: int | None = None) -> State:
        has_any = has_masks(self._recipe, batch["inputs"])
        masks = draw_masks(self._recipe, knobs, seeds, state.step, batch["inputs"]) if has_any else {}
        gradient, loss = self._gradient(knobs, state.parameters, batch, masks)
        return self._update(knobs, state, gradient, loss)


class NativeStep:
    """Loss and gradient in C++, lane by lane and in blocks; the update is native, or traced."""

    def __init__(self, recipe: Recipe, computed: NativeModel) -> None:
        self._bound = BoundRecipe(recipe)
        self._gradient = computed.gradient
        self.kind = f"native {native.instruction_set()}"
        self._update = _update_of(recipe)

    @property
    def setup_seconds(self) -> float:
        return self._update.seconds

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch, used: int | None = None) -> State:
        recipe = self._bound.of(knobs, used)
        streams = SiteStreams(seeds=seeds[:used], steps=state.step[:used])
        used_batch = {name: tensor[:used] for name, tensor in batch.items()}
        gradient, loss = self._gradient(recipe.model, recipe.task, state.parameters[:used], used_batch, streams)
        left_out = len(seeds) - len(loss)
        if left_out and not isinstance(self._update, NativeUpdate):
            gradient, loss = (torch.cat([rows, rows.new_zeros(left_out, *rows.shape[1:])]) for rows in (gradient, loss))
        return self._update(knobs, state, gradient, loss)


def _update_of(recipe: Recipe) -> NativeUpdate | Traced:
    """Return clipping, optimizer and average on a CPU: native, or traced."""
    layout, device = layout_of(recipe), torch.device("cpu")

    def update_one(knobs: Knobs, state: State, gradient: Tensor, loss: Tensor) -> State:
        return apply_gradient(recipe.bind(knobs), layout, state, gradient, loss)

    return update_of(recipe, layout, device) or Traced(("update", update_key(recipe), str(device)), vmap(update_one))
