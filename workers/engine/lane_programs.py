"""Loss and gradient of one trial as a program that is generated from its recording, and run for one lane after another.

Whether there is one, and whether it is right, is found out on an example before the first step: it must give what the
operations give that it was recorded from. What is found holds for the process, so no step changes while a trial trains.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spaces import plugins
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

_CLOSE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""How near a program comes to its operations: a part of the largest number of a result."""
_LOCK = threading.Lock()


@final
class LaneGradient:
    """Loss and gradient of all lanes, by a program for each set of shapes; other shapes' operations are traced."""

    seconds = 0.0
    """What a new number of lanes costs: nothing."""

    def __init__(self, recipe: Recipe, key: str) -> None:
        """`key`: of the recipe, apart from numbers."""
        self._recipe, self._layout = recipe, layout_of(recipe)
        self._traced = Traced(("gradient", key, "cpu"), torch.func.vmap(self._compute))
        self._programs: dict[Hashable, Program | None] = {}

    def __call__(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """Return gradients [L, P], not clipped, and losses [L], of `Arguments` with lanes."""
        leaves, form = pytree.tree_flatten(arguments)
        key = tuple((one.shape[1:], one.dtype) for one in leaves)
        if key not in self._programs:
            with _LOCK:
                self._programs[key] = self._make([leaf[0] for leaf in leaves], form)
        program = self._programs[key]
        if program is None:
            return self._traced(*arguments)
        gradient, loss = program(leaves)
        return gradient, loss

    def find_fault(self) -> str | None:
        """Return why there is no program, from an example of one trial; None if there is one."""
        if native.library("programs") is None:
            return "there is no C++ compiler"
        load_gradients()
        leaves, form = pytree.tree_flatten(self._example())
        key = tuple((one.shape[1:], one.dtype) for one in leaves)
        try:
            program = self._record([leaf[0] for leaf in leaves], form)
            if not program.load():
                return "there is no C++ compiler"
            expected = self._compute(*pytree.tree_unflatten([leaf[0] for leaf in leaves], form))
            for one, other in zip(program(leaves), expected, strict=True):
                bound = _CLOSE[self._recipe.dtype] * float(other.abs().max())
                if not torch.allclose(one[0], other, 0.0, bound, equal_nan=True):
                    return "what is generated gives other numbers than its operations"
        except (CannotFuse, CannotRecord) as error:
            return f"no code is generated for {error}"
        except Exception as error:  # what a user's file raises is told where its steps are recorded
            return f"it cannot be recorded: {shorten(f'{type(error).__name__}: {error}'.partition(chr(10))[0], 200)}"
        self._programs[key] = program
        return None

    def _example(self) -> Arguments:
        """Return the arguments of one lane's first step, of another seed than a trial's."""
        recipe, seeds, step = self._recipe, torch.tensor([1]), torch.tensor([0])
        knobs = {path: torch.tensor([value], dtype=torch.float64) for path, value in recipe.knobs().items()}
        bound = recipe.bind(knobs)
        batch = bound.learning.training(bound.task, seeds, recipe.training.batch, step)
        parameters = self._layout.initial(seeds).to(recipe.dtype)
        return knobs, parameters, batch, draw_masks(recipe, knobs, seeds, step, batch["inputs"])

    def _make(self, leaves: list[Tensor], form: pytree.TreeSpec) -> Program | None:
        try:
            program = self._record(leaves, form)
        except (CannotFuse, CannotRecord):
            return None
        return program if program.load() else None

    def _record(self, leaves: list[Tensor], form: pytree.TreeSpec) -> Program:
        return Program(lambda *given: self._compute(*pytree.tree_unflatten([*given], form)), leaves)

    def _compute(self, knobs: Knobs, parameters: Tensor, batch: Batch, keep: Batch) -> tuple[Tensor, Tensor]:
        return gradient_of(self._recipe.bind(knobs), self._layout, parameters, batch, keep)


SWITCH = "GRAFT_GENERATED"
"""The environment variable that is 1 where such steps are tried: they are not proven enough to be on by themselves."""


def gradient_by_program(recipe: Recipe, device: torch.device) -> LaneGradient | str:
    """Return loss and gradient by a program, or why there is none; empty where such steps are not tried."""
    if os.environ.get(SWITCH) != "1":
        return ""
    if device.type != "cpu":
        return "no code is generated for a GPU"
    if recipe.training.autocast != "none":
        return "no code is generated for training.autocast"
    parts = [plugins.structure_of(getattr(recipe, section)) for section in SECTIONS if section != "training"]
    training = recipe.training
    rest = [training.batch, training.dtype, training.accumulate, training.pad_shapes, [*recipe.knobs()]]
    key = plugins.canonical_json([*parts, *rest])
    with _LOCK:
        if key not in _FOUND:
            found = LaneGradient(recipe, key)
            _FOUND[key] = found.find_fault() or found
            while len(_FOUND) > _KEPT:
                del _FOUND[next(iter(_FOUND))]
        return _FOUND[key]


_FOUND: dict[str, LaneGradient | str] = {}
"""Key of a recipe -> its gradient, or why there is none."""
_KEPT = 64
