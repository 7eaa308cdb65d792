"""Loss and gradient of one trial as a program that is generated from its recording, and run for one lane after another.

A program is checked before it is used: on memory that is full of NaN it must give, twice, the gradient and the loss of
three lanes that the operations give. The answer holds for the process, so no step changes while a trial trains.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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
from workers.numerics.fusion.values import CannotFuse
from workers.numerics.programs.running import Program
from workers.numerics.tape import CannotRecord
from workers.numerics.tracing import Traced, load_gradients
from workers.training.recipe import SECTIONS, Recipe, gradient_of, layout_of

Knobs = dict[str, Tensor]
Arguments = tuple[Knobs, Tensor, Batch, Batch]
"""Knobs, parameters, batch and dropout masks, of one trial or of all lanes."""

_LOG = logging.getLogger(__name__)
_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""How near a program comes to its operations: a part of the largest number of a parameter's gradient."""
_ROUNDING = 32
"""Units in the last place of a gradient's largest number that a parameter's may differ by: some are rounding alone."""
_LANES = 3
"""Lanes that a program is checked on."""
_OTHER_SECTIONS = ("optimizer.", "averaging.")
"""Knobs that no gradient depends on."""
_LOCK = threading.Lock()
_LOCKS: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()


def _lock_of(key: Hashable) -> threading.Lock:
    """Return the lock of a key, so that one thread alone compiles what others wait for."""
    with _LOCK:
        return _LOCKS.setdefault(key, threading.Lock())


@final
class LaneGradient:
    """Loss and gradient of all lanes, by a program for each set of shapes; other shapes' operations are traced."""

    def __init__(self, recipe: Recipe, key: str) -> None:
        """`key`: of the recipe, apart from numbers."""
        self._recipe, self._layout, self._key = recipe, layout_of(recipe), key
        self._traced = Traced(("gradient", key, "cpu"), torch.func.vmap(self._compute))
        self._programs: dict[Hashable, Program | None] = {}

    def __call__(self, knobs: Knobs, parameters: Tensor, batch: Batch, keep: Batch) -> tuple[Tensor, Tensor]:
        """Return gradients [L, P], not clipped, and losses [L], of `Arguments` with lanes."""
        arguments = _without_others(knobs), parameters, batch, keep
        leaves, form = pytree.tree_flatten(arguments)
        key = _key_of(leaves, form)
        if key not in self._programs:
            with _lock_of((self._key, key)):
                if key not in self._programs:
                    self._programs[key] = self._make(arguments)
        program = self._programs[key]
        if program is None:
            return self._traced(*arguments)
        gradient, loss = program(leaves)
        return gradient, loss

    def find_fault(self) -> str | None:
        """Return why there is no program, from an example of three trials; None if there is one."""
        if native.library("programs") is None:
            return "there is no C++ compiler"
        load_gradients()
        try:
            arguments = self._example()
            program = self._record(arguments)
            if not program.load():
                return "there is no C++ compiler"
            if fault := self._check(program, arguments):
                return fault
        except Exception as error:
            return _describe(error)
        self._programs[_key_of(*pytree.tree_flatten(arguments))] = program
        return None

    def _make(self, arguments: Arguments) -> Program | None:
        """Return a program for other shapes, or None if there is none that is right."""
        lanes = len(arguments[1])
        example = pytree.tree_map(lambda one: one[torch.arange(_LANES) % lanes], arguments)
        try:
            program = self._record(example)
            is_loaded = program.load()
            if is_loaded:
                return None if self._check(program, example) else program
        except Exception as error:
            _LOG.info("steps of these shapes are traced: %s", _describe(error))
            return None
        raise GraftError("the C++ compiler failed on a step of other shapes; its log says why")

    def _example(self) -> Arguments:
        """Return the arguments of lanes of other seeds, steps and, where sizes are padded, sizes."""
        recipe, seeds, step = self._recipe, torch.arange(1, _LANES + 1), torch.arange(_LANES) * 5
        values = {path: [value] * _LANES for path, value in recipe.knobs().items()}
        if recipe.training.pad_shapes:
            for section in SECTIONS:
                for path, size in plugins.paddable_sizes(getattr(recipe, section), section):
                    values[path] = [size, max(1, size * 3 // 4), size // 2 + 1]
        knobs = {path: torch.tensor(own, dtype=torch.float64) for path, own in values.items()}
        bound = recipe.bind(knobs)
        batch = bound.learning.training(bound.task, seeds, recipe.training.batch, step)
        parameters = self._layout.initial(seeds).to(recipe.dtype)
        return _without_others(knobs), parameters, batch, draw_masks(recipe, knobs, seeds, step, batch["inputs"])

    def _check(self, program: Program, arguments: Arguments) -> str | None:
        """Return how a program differs from its operations; None if it does not."""
        knobs, parameters, batch, keep = arguments
        # Parameters that start at zero would hide what is multiplied by them.
        noise = torch.randn(parameters.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        arguments = knobs, (parameters + 0.1 * noise).to(parameters.dtype), batch, keep
        # A tensor under vmap has no memory: a function that reads numbers of it outside of torch's operations, which a
        # program would repeat in every step, fails here.
        expected = torch.func.vmap(self._compute)(*arguments)
        for _ in range(2):
            found = program(pytree.tree_leaves(arguments), spoil=True)
            for lane in range(_LANES):
                for name, own, right, bound in self._pairs(found, expected, lane):
                    if not torch.allclose(own, right, 0.0, bound, equal_nan=True):
                        return f"what is generated gives other numbers than its operations: {name}"
        return None

    def _pairs(
        self, found: Sequence[Tensor], expected: Sequence[Tensor], lane: int
    ) -> Iterator[tuple[str, Tensor, Tensor, float]]:
        """Yield name, number found, number expected and bound of a lane's loss, and of each parameter's gradient."""
        (own, own_loss), (right, right_loss) = ([one[lane] for one in both] for both in (found, expected))
        close = _CLOSE[self._recipe.dtype]
        yield "the loss", own_loss, right_loss, close * _largest(right_loss)
        least = _ROUNDING * torch.finfo(self._recipe.dtype).eps * _largest(right)
        pieces = self._layout.split(right)
        for name, piece in self._layout.split(own).items():
            yield f"the gradient of {name}", piece, pieces[name], close * _largest(pieces[name]) + least

    def _record(self, arguments: Arguments) -> Program:
        leaves, form = pytree.tree_flatten(arguments)
        return Program(lambda *given: self._compute(*pytree.tree_unflatten([*given], form)), [one[0] for one in leaves])

    def _compute(self, knobs: Knobs, parameters: Tensor, batch: Batch, keep: Batch) -> tuple[Tensor, Tensor]:
        bound = self._recipe.bind({**self._recipe.knobs(), **knobs})
        return gradient_of(bound, self._layout, parameters, batch, keep)


def _without_others(knobs: Knobs) -> Knobs:
    return {path: knob for path, knob in knobs.items() if not path.startswith(_OTHER_SECTIONS)}


def _key_of(leaves: Sequence[Tensor], form: pytree.TreeSpec) -> Hashable:
    return form, tuple((one.shape[1:], one.dtype) for one in leaves)


def _largest(tensor: Tensor) -> float:
    """Return the largest finite number of a tensor, without its sign; 0 if there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _describe(error: Exception) -> str:
    """Describe why there is no program; a user's file's own error is told where its steps are recorded, too."""
    if isinstance(error, CannotFuse | CannotRecord):
        return f"no code is generated for {error}"
    return f"it cannot be recorded: {shorten(f'{type(error).__name__}: {error}'.partition(chr(10))[0], 200)}"


SWITCH = "GRAFT_GENERATED"
"""The environment variable that is 0 where such steps are not wanted."""
_TRACING = ContextVar("_TRACING", default=False)


@contextmanager
def as_trained_by(step_kind: str) -> Generator[None]:
    """Make steps of the kind that trained a trial: what was traced is traced, although code is generated for it now.

    `step_kind`: as reports have it, or the kind of device if no more is known.
    """
    token = _TRACING.set(step_kind.startswith("traced"))
    try:
        yield
    finally:
        _TRACING.reset(token)


def gradient_by_program(recipe: Recipe, device: torch.device) -> LaneGradient | str:
    """Return loss and gradient by a program, or why there is none; empty where there is nothing to add to that."""
    if _TRACING.get() or os.environ.get(SWITCH) == "0":
        return ""
    if device.type != "cpu":
        return "no code is generated for a GPU"
    if recipe.training.autocast != "none":
        return ""
    others = ("training", "optimizer", "averaging")
    parts = [plugins.structure_of(getattr(recipe, section)) for section in SECTIONS if section not in others]
    training = recipe.training
    knobs = [path for path in recipe.knobs() if not path.startswith(_OTHER_SECTIONS)]
    key = plugins.canonical_json(
        [*parts, training.batch, training.dtype, training.accumulate, training.pad_shapes, knobs]
    )
    with _lock_of(key):
        if key not in _FOUND:
            made = LaneGradient(recipe, key)
            found = made.find_fault() or made
            with _LOCK:
                _FOUND[key] = found
                while len(_FOUND) > _KEPT:
                    del _FOUND[next(iter(_FOUND))]
            return found
        return _FOUND[key]


_FOUND: dict[str, LaneGradient | str] = {}
"""Key of a recipe -> its gradient, or why there is none."""
_KEPT = 64
