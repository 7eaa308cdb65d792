"""Loss and gradient of a trial by a generated C++ program, which runs lane by lane on a CPU.

A program is generated from a recording of one lane's tensor operations
(`workers.numerics.programs`) and checked before it is used: on memory full of NaN it must give,
twice, the loss and gradient of torch's operations for three lanes. The result of the check holds
for the process, so that the kind of step does not change in training.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import final
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spaces import plugins
from spaces.errors import GraftError
from spaces.messages import shorten
from workers.data.tasks import Batch
from workers.engine.dropout_masks import draw_masks
from workers.numerics import native
from workers.numerics.codegen.values import CannotGenerate
from workers.numerics.programs.running import LaneProgram
from workers.numerics.tape import CannotRecord
from workers.numerics.tracing import Traced, load_gradients
from workers.training.recipe import SECTIONS, Recipe, gradient_of, layout_of

Knobs = dict[str, Tensor]
Arguments = tuple[Knobs, Tensor, Batch, Batch]
"""Knobs, parameters, batch and dropout masks: of one trial, or stacked over lanes."""

_LOG = logging.getLogger(__name__)
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Error allowed in the loss and in each parameter's gradient, relative to the largest number."""
_NEAR_KINKS = 0.1
"""The same for float32 if float64 is exact: rounding across a spline's kink changes the slope."""
_ROUNDING_UNITS = 32
"""Further error, in units in the last place of the gradient's largest: some are rounding alone."""
_LANES = 3
"""Lanes that a program is checked on."""
_UPDATE_PREFIXES = ("optimizer.", "averaging.")
"""Prefixes of the paths of knobs that no gradient depends on."""
_LOCK = threading.Lock()
"""Guards `_LOCKS`, and changes of `_GRADIENTS`."""
_LOCKS: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()


def _lock_of(key: Hashable) -> threading.Lock:
    """Return the lock of a key: one thread compiles a program, and others that need it wait."""
    with _LOCK:
        return _LOCKS.setdefault(key, threading.Lock())


@final
class LaneGradient:
    """Loss and gradient of all lanes by a program per set of shapes; others are traced."""

    def __init__(self, recipe: Recipe, key: str) -> None:
        """`key`: equal for recipes that differ in the values of their knobs alone."""
        self._recipe, self._layout, self._key = recipe, layout_of(recipe), key
        self._traced = Traced(("gradient", key, "cpu"), torch.func.vmap(self._compute))
        self._programs: dict[Hashable, LaneProgram | None] = {}

    def __call__(self, knobs: Knobs, parameters: Tensor, batch: Batch, masks: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients [L, P], not clipped, and losses [L]; the arguments are stacked."""
        arguments = _gradient_knobs(knobs), parameters, batch, masks
        leaves, spec = pytree.tree_flatten(arguments)
        key = _shape_key(leaves, spec)
        if key not in self._programs:
            with _lock_of((self._key, key)):
                if key not in self._programs:
                    self._programs[key] = self._make_program(arguments)
        program = self._programs[key]
        if program is None:
            return self._traced(*arguments)
        gradient, loss = program(leaves)
        return gradient, loss

    def find_fault(self) -> str | None:
        """Make and check a program for three example trials; return what prevents one, or None."""
        if native.library("programs") is None:
            return "there is no C++ compiler"
        load_gradients()
        try:
            arguments = self._example()
            program = self._record_program(arguments)
            if not program.load():
                return "there is no C++ compiler"
            if fault := self._check(program, arguments):
                return fault
        except Exception as error:
            return _describe(error)
        self._programs[_shape_key(*pytree.tree_flatten(arguments))] = program
        return None

    def _make_program(self, arguments: Arguments) -> LaneProgram | None:
        """Return a right program for other shapes, or None; GraftError if the compiler fails."""
        lanes = len(arguments[1])
        example = pytree.tree_map(lambda tensor: tensor[torch.arange(_LANES) % lanes], arguments)
        try:
            program = self._record_program(example)
            is_loaded = program.load()
            if is_loaded:
                return None if self._check(program, example) else program
        except Exception as error:
            _LOG.info("steps of these shapes are traced: %s", _describe(error))
            return None
        raise GraftError("the C++ compiler failed on a step of other shapes; its log says why")

    def _example(self) -> Arguments:
        """Return example arguments whose lanes differ in seed, step and, if padded, in sizes."""
        recipe, seeds, step = self._recipe, torch.arange(1, _LANES + 1), torch.arange(_LANES) * 5
        values = {path: [value] * _LANES for path, value in recipe.knobs().items()}
        if recipe.training.pad_shapes:
            for section in SECTIONS:
                for path, size in plugins.paddable_sizes(getattr(recipe, section), section):
                    values[path] = [size, max(1, size * 3 // 4), size // 2 + 1]
        knobs = {path: torch.tensor(numbers, dtype=torch.float64) for path, numbers in values.items()}
        bound = recipe.bind(knobs)
        batch = bound.learning.training(bound.task, seeds, recipe.training.batch, step)
        parameters = self._layout.initial(seeds).to(recipe.dtype)
        return _gradient_knobs(knobs), parameters, batch, draw_masks(recipe, knobs, seeds, step, batch["inputs"])

    def _check(self, program: LaneProgram, arguments: Arguments) -> str | None:
        """Return where a program's results differ from its operations' results; None if nowhere."""
        fault = self._compare(program, arguments, _TOLERANCE[self._recipe.dtype])
        if fault and self._recipe.dtype == torch.float32 and not self._compare(program, arguments, _NEAR_KINKS):
            exact = replace(self._recipe, training=replace(self._recipe.training, dtype="float64"))
            return fault if LaneGradient(exact, f"{self._key} in float64").find_fault() else None
        return fault

    def _compare(self, program: LaneProgram, arguments: Arguments, relative: float) -> str | None:
        """Return where results differ by more than a part of a parameter's largest number."""
        knobs, parameters, batch, masks = arguments
        # Noise: a parameter that starts at zero would hide errors in whatever it is multiplied by.
        noise = torch.randn(parameters.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        arguments = knobs, (parameters + 0.1 * noise).to(parameters.dtype), batch, masks
        # A program would repeat at every step a number that the function reads past torch, as by
        # numpy. Tensors under vmap have no memory, so such a read fails here.
        expected = torch.func.vmap(self._compute)(*arguments)
        for _ in range(2):
            results = program(pytree.tree_leaves(arguments), spoil=True)
            for lane in range(_LANES):
                for name, actual, wanted, tolerance in self._list_comparisons(results, expected, lane, relative):
                    if not torch.allclose(actual, wanted, 0.0, tolerance, equal_nan=True):
                        return f"what is generated gives other numbers than its operations: {name}"
        return None

    def _list_comparisons(
        self, results: Sequence[Tensor], expected: Sequence[Tensor], lane: int, relative: float
    ) -> Iterator[tuple[str, Tensor, Tensor, float]]:
        """Yield name, result, expectation and tolerance of a lane's loss and gradients."""
        (actual, loss), (wanted, wanted_loss) = ([tensor[lane] for tensor in pair] for pair in (results, expected))
        yield "the loss", loss, wanted_loss, relative * _largest(wanted_loss)
        absolute = _ROUNDING_UNITS * torch.finfo(self._recipe.dtype).eps * _largest(wanted)
        pieces = self._layout.split(wanted)
        for name, piece in self._layout.split(actual).items():
            yield f"the gradient of {name}", piece, pieces[name], relative * _largest(pieces[name]) + absolute

    def _record_program(self, arguments: Arguments) -> LaneProgram:
        leaves, spec = pytree.tree_flatten(arguments)
        first = [leaf[0] for leaf in leaves]
        return LaneProgram(lambda *lane: self._compute(*pytree.tree_unflatten([*lane], spec)), first)

    def _compute(self, knobs: Knobs, parameters: Tensor, batch: Batch, masks: Batch) -> tuple[Tensor, Tensor]:
        recipe = self._recipe.bind({**self._recipe.knobs(), **knobs})
        return gradient_of(recipe, self._layout, parameters, batch, masks)


def _gradient_knobs(knobs: Knobs) -> Knobs:
    return {path: knob for path, knob in knobs.items() if not path.startswith(_UPDATE_PREFIXES)}


def _shape_key(leaves: Sequence[Tensor], spec: pytree.TreeSpec) -> Hashable:
    return spec, tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)


def _largest(tensor: Tensor) -> float:
    """Return the largest finite absolute value in a tensor; 0 if there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _describe(error: Exception) -> str:
    """Describe why there is no program; an error of a user's plug-in is raised when traced."""
    if isinstance(error, CannotGenerate | CannotRecord):
        return f"no code is generated for {error}"
    return f"it cannot be recorded: {shorten(f'{type(error).__name__}: {error}'.partition(chr(10))[0], 200)}"


SWITCH = "GRAFT_GENERATED"
"""The environment variable that turns generated programs off when it is 0."""
_TRAINED_BY = ContextVar("_TRAINED_BY", default="")
"""The `step_kind` of the trial that is trained again, if one is."""


@contextmanager
def as_trained_by(step_kind: str) -> Generator[None]:
    """Trace all steps in this context if a trial's `step_kind` says so; else choose as usual.

    An architecture that was learned by generated steps is learned by them again. What a GPU traced
    is native on a CPU, where it can be: its bits are others in any case.
    """
    token = _TRAINED_BY.set(step_kind)
    try:
        yield
    finally:
        _TRAINED_BY.reset(token)


def was_trained_by(*methods: str) -> bool:
    """Return whether a trial is trained again that such steps trained."""
    return _TRAINED_BY.get().startswith(methods)


def gradient_by_program(recipe: Recipe, device: torch.device) -> LaneGradient | str:
    """Return the gradient by program, or why there is none; empty if the caller has a reason."""
    if was_trained_by("traced") or os.environ.get(SWITCH) == "0":
        return ""
    if device.type != "cpu":
        return "no code is generated for a GPU"
    if recipe.training.autocast != "none":
        return ""
    skipped = ("training", "optimizer", "averaging")
    parts = [plugins.structure_of(getattr(recipe, section)) for section in SECTIONS if section not in skipped]
    training = recipe.training
    knobs = [path for path in recipe.knobs() if not path.startswith(_UPDATE_PREFIXES)]
    options = training.batch, training.dtype, training.accumulate, training.pad_shapes
    key = plugins.canonical_json([*parts, *options, knobs])
    with _lock_of(key):
        if key not in _GRADIENTS:
            gradient = LaneGradient(recipe, key)
            outcome = gradient.find_fault() or gradient
            with _LOCK:
                _GRADIENTS[key] = outcome
                while len(_GRADIENTS) > _MOST_GRADIENTS:
                    del _GRADIENTS[next(iter(_GRADIENTS))]
            return outcome
        return _GRADIENTS[key]


_GRADIENTS: dict[str, LaneGradient | str] = {}
"""Key of a recipe -> its gradient, or why there is none; the oldest are dropped first."""
_MOST_GRADIENTS = 64
