"""The kernels that make fused steps, and which of them trains a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from workers.engine.fused import layered, minimal
from workers.engine.fused.memory import Limits, Workspace
from workers.engine.fused.step import FusedStep
from workers.networks.models.minimal import Minimal
from workers.numerics.cuda import programs
from workers.numerics.cuda.programs import Program
from workers.training.recipe import Recipe


class FusedKernel(NamedTuple):
    """A kernel, and the steps that it makes."""

    program: Program
    find_obstacle: Callable[[Recipe], str | None]
    """Why trials of this structure have no fused step; None: they have, where `arrange` finds room."""
    arrange: Callable[[Recipe, Limits], Workspace | None]
    """Where its arrays lie; None where they do not fit."""
    step: type[FusedStep]


KERNELS = {
    "minimal": FusedKernel(programs.MINIMAL, minimal.find_obstacle, minimal.arrange, minimal.MinimalStep),
    "layered": FusedKernel(programs.LAYERED, layered.find_obstacle, layered.arrange, layered.LayeredStep),
}


def name_of_kernel(recipe: Recipe) -> str:
    """Return the name of the kernel that could train this recipe; its obstacle says whether it does."""
    return "minimal" if isinstance(recipe.model, Minimal) else "layered"


def kernel_for(recipe: Recipe) -> FusedKernel:
    """Return the one that could train this recipe; its obstacle says whether it does."""
    return KERNELS[name_of_kernel(recipe)]
