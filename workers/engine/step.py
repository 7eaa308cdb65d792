"""One optimizer step of all lanes of a pack: how it is computed is the engine's choice, what it computes is not.

`TracedStep` stacks `workers.training.recipe.advance` over lanes with vmap, whatever the plug-ins are; on a GPU the
update is a kernel of its own, where there is one for the optimizer. `NativeStep` takes loss and gradient from the
model's native one, where it has that for this task and device, and traces the rest. `FusedStep`
(`workers.engine.fused`) makes many steps at a launch, on GPUs that have passed its check.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, overload

import torch
from torch import Tensor
from torch.func import vmap

from workers.data.tasks import Batch
from workers.engine import fused
from workers.engine.fused.step import FusedStep
from workers.engine.machine.devices import WIDTHS
from workers.networks.models import NativeGradient, Site
from workers.numerics import native
from workers.numerics.fusion import fuses_on
from workers.numerics.processors import instruction_set
from workers.numerics.randomness import Purpose, Streams, keep_mask, padded_keep_mask
from workers.numerics.tracing import Traced, load_gradients
from workers.training.fused_update import fused_update_of
from workers.training.native_update import libraries_of, update_of
from workers.training.recipe import Recipe, State, advance, apply_gradient, gradient_of, layout_of, update_key

USUAL_LANES = WIDTHS["cuda"]
"""The width of a pack on a GPU where none is named; on a CPU the step does not depend on it."""
Knobs = dict[str, Tensor]
"""Dotted path -> one value [L] per lane, float64."""


class Step(Protocol):
    """An optimizer step of L lanes, each on its own batch and from its own streams."""

    @property
    def kind(self) -> str:
        """What computes it, as far as bits depend on it: `native AVX2`, `traced AVX512`, `traced cuda 9.0`."""
        ...

    @property
    def width_seconds(self) -> float:
        """What the last new number of lanes cost; 0 while none is known to have cost anything."""
        ...

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> State:
        """Return the state after the step; the argument is left as it was."""
        ...


def step_of(recipe: Recipe, structure: str, device: torch.device, lanes: int = USUAL_LANES) -> Step | FusedStep:
    """Return the fastest step for packs of so many trials of this structure on this device."""
    if device.type == "cuda" and fused.obstacle(recipe, device, lanes) is None:
        return fused.make_step(recipe, device)
    may_be_native = recipe.learning.is_plain and recipe.training.autocast == "none"
    gradient = recipe.model.native_gradient(recipe.task, recipe.dtype, device) if may_be_native else None
    return NativeStep(recipe, device, gradient) if gradient else TracedStep(recipe, structure, device)


def begin_loading(config: Mapping[str, Any], device: str) -> None:
    """Load or compile in the background what trials of this configuration use on a CPU, which `step_of` waits for."""
    where, recipe = torch.device(device), Recipe.of(config).pad()
    if where.type == "cpu":
        threading.Thread(target=obstacle, args=(recipe, where), name="load the gradient").start()
        native.begin(map(native.packaged, libraries_of(recipe)))


def obstacle(recipe: Recipe, device: torch.device, lanes: int = USUAL_LANES) -> str | None:
    """Return why such packs train by the traced step on this device; None if they do by a faster one."""
    if device.type == "cuda":
        return fused.obstacle(recipe, device, lanes)
    if not recipe.learning.is_plain:
        return "the native steps learn weights alone"
    if recipe.training.autocast != "none":
        return "the native steps know no training.autocast"
    return recipe.model.obstacle(recipe.task, recipe.dtype, device)


def describe_step(config: Mapping[str, Any], device: str, lanes: int = USUAL_LANES) -> str:
    """Describe how packs of this configuration train on this device: `native`, `fused`, or `traced` and why."""
    where = torch.device(device)
    recipe = Recipe.of(config).pad()
    if reason := obstacle(recipe, where, lanes):
        return f"traced: {reason}"
    rates = fused.rates_of(recipe, where, lanes) if where.type == "cuda" else None
    return f"fused, {rates.describe()}" if rates else _fastest(where)


def method_of(config: Mapping[str, Any], device: str) -> str:
    """How trials of this configuration train on this device, as `Step.kind` says it, without the processor."""
    where = torch.device(device)
    method = "traced" if obstacle(Recipe.of(config).pad(), where) else _fastest(where)
    return f"{method} {where.type}" if where.type != "cpu" else method


def _fastest(device: torch.device) -> str:
    return "fused" if device.type == "cuda" else "native"


class TracedStep:
    """The step of one trial, stacked over lanes and replayed as a flat list of tensor operations."""

    def __init__(self, recipe: Recipe, structure: str, device: torch.device) -> None:
        self._recipe = recipe
        self._layout = layout_of(recipe, device)
        load_gradients()
        self._update = fused_update_of(recipe, self._layout, device)
        stacked = vmap(self._gradient_of_one) if self._update else vmap(self._advance_one)
        what = "gradient" if self._update else "step"
        self._traced = Traced((what, structure, str(device)), stacked)
        # A GPU draws by operations that are better recorded, too; a CPU draws by native code, which is no operation.
        self._drawn = Traced(("masks", structure, str(device)), self._draw) if fuses_on(device) else None
        self.kind = f"traced {instruction_set(device)}"

    @property
    def width_seconds(self) -> float:
        return self._traced.seconds

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> State:
        return self._advance(self._traced, knobs, seeds, state, batch)

    def unscripted(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> Callable[..., State]:
        """Return the step for arguments of these shapes, by its recording's operations, started from Python one by
        one.
        """
        keep = self.masks(knobs, seeds, state, batch)
        arguments = (knobs, state, batch, keep) if self._update is None else (knobs, state.parameters, batch, keep)
        return functools.partial(self._advance, self._traced.unscripted(*arguments))

    def _advance(self, act: Callable[..., Any], knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> State:
        keep = self.masks(knobs, seeds, state, batch)
        if self._update is None:
            return act(knobs, state, batch, keep)
        gradient, loss = act(knobs, state.parameters, batch, keep)
        return self._update(knobs, state, gradient, loss)

    def _advance_one(self, knobs: Knobs, state: State, batch: Batch, keep: Batch) -> State:
        return advance(self._recipe.bind(knobs), self._layout, state, batch, keep)

    def _gradient_of_one(self, knobs: Knobs, parameters: Tensor, batch: Batch, keep: Batch) -> tuple[Tensor, Tensor]:
        return gradient_of(self._recipe.bind(knobs), self._layout, parameters, batch, keep)

    def masks(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> Batch:
        """[L, ...] what each dropout site that is on keeps."""
        if not any(site.rate for site in _sites(self._recipe, batch).values()):
            return {}
        return (self._drawn or self._draw)(knobs, seeds, state.step, batch["inputs"])

    def _draw(self, knobs: Knobs, seeds: Tensor, step: Tensor, inputs: Tensor) -> Batch:
        """Of the inputs the shape alone counts."""
        batch = {"inputs": inputs}
        sites, stacked = _sites(self._recipe, batch), _sites(self._recipe.bind(knobs), batch)
        streams = _Streams(seeds, step, len(sites))
        return {
            name: _mask(streams[number], stacked[name])
            for number, (name, site) in enumerate(sites.items())
            if site.rate
        }


class NativeStep:
    """Loss and gradient by the model's own code, lane by lane; so are clipping, optimizer and average, or traced.

    A batch that may be taken in parts is taken as a whole: the code works through it in blocks of its own.
    """

    def __init__(self, recipe: Recipe, device: torch.device, gradient: NativeGradient) -> None:
        self._recipe = recipe
        self._bound: tuple[Knobs, Recipe] = {}, recipe
        self._gradient = gradient
        self._sites = len(recipe.model.dropout_sites(recipe.task, 1, recipe.task.context))
        self._layout = layout_of(recipe, device)
        self.kind = f"native {native.instruction_set()}"
        self._update = update_of(recipe, self._layout, device) or Traced(
            ("update", update_key(recipe), str(device)), vmap(self._one)
        )

    @property
    def width_seconds(self) -> float:
        return self._update.seconds

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch) -> State:
        if self._bound[0] is not knobs:  # a trial that takes a lane writes into the knobs' tensors
            self._bound = knobs, self._recipe.bind(knobs)
        _, recipe = self._bound
        streams = _Streams(seeds, state.step, self._sites)
        gradient, loss = self._gradient(recipe.model, recipe.task, state.parameters, batch, streams)
        return self._update(knobs, state, gradient, loss)

    def _one(self, knobs: Knobs, state: State, gradient: Tensor, loss: Tensor) -> State:
        return apply_gradient(self._recipe.bind(knobs), self._layout, state, gradient, loss)


def _sites(recipe: Recipe, batch: Batch) -> dict[str, Site]:
    return dict(recipe.model.dropout_sites(recipe.task, recipe.training.batch, batch["inputs"].shape[2]))


def _mask(streams: Streams, site: Site) -> Tensor:
    """[L, ...] what a site keeps; its rate [L]."""
    rates = torch.as_tensor(site.rate)
    if site.actual:
        return padded_keep_mask(streams, rates, site.shape, site.actual)
    return keep_mask(streams, rates, *site.shape)


class _Streams(Sequence[Streams]):
    """The streams of the model's dropout sites, each in its place; one of a site that is off is never made."""

    def __init__(self, seeds: Tensor, step: Tensor, sites: int) -> None:
        self._seeds, self._step, self._sites = seeds, step, sites

    def __len__(self) -> int:
        return self._sites

    @overload
    def __getitem__(self, index: int) -> Streams: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Streams]: ...
    def __getitem__(self, index: int | slice) -> Streams | Sequence[Streams]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._sites))]
        if index >= self._sites:
            raise IndexError(index)
        return Streams.of(self._seeds, Purpose.DROPOUT, self._step, index)
