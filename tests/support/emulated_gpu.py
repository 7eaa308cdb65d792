"""The fused step's kernel on this processor: a block after another one, compiled by the C++ compiler."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from tests.support.compiled import compiled
from workers.engine.fused.plan import Limits, Plan, Workspace
from workers.engine.fused.step import FusedStep, arrange
from workers.engine.fused_check import _start
from workers.numerics import cuda
from workers.numerics.native import address
from workers.training.recipe import Recipe

FORWARDS, BACKWARDS, SHUFFLED = range(3)
"""In which the work between two meetings of a block's threads is done."""
CPU = torch.device("cpu")
HOPPER = Limits(228 << 10, 227 << 10)
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-math-errno")


@functools.cache
def library(*, weights_in_shared: bool, tf32: bool = False, rounded_bits: int = 13) -> ctypes.CDLL:
    """Return the emulated kernel, compiled once on a machine, as the native steps are.

    `rounded_bits`: that factors lose in TF32 tiles.
    """
    folder = Path(cuda.__file__).parent
    choices = {"WEIGHTS_IN_SHARED": int(weights_in_shared), "TF32": int(tf32), "ROUNDED_BITS": rounded_bits}
    flags = [*FLAGS, *(f"-D{name}={value}" for name, value in choices.items()), "-I", str(folder)]
    included = [path.read_text() for path in sorted(folder.iterdir()) if path.suffix in (".hpp", ".cu")]
    made_library = compiled((folder / "emulated.cpp").read_text(), flags, *included)
    made_library.phases.restype = made_library.items.restype = ctypes.c_int64
    return made_library


def count_phases(recipe: Recipe, *, tf32: bool = False) -> tuple[int, int]:
    """Return the meetings of a block's threads, and the work between them, of one step of a lane."""
    counts: list[tuple[int, int]] = []
    step = emulated_step(recipe, tf32=tf32)
    made = library(weights_in_shared=step.workspace.weights_in_shared, tf32=tf32)
    for steps in (1, 2):
        before = made.phases(), made.items()
        step.advance(*_start(recipe, 1, CPU), steps)
        counts.append((made.phases() - before[0], made.items() - before[1]))
    (phases, items), (more_phases, more_items) = counts
    return more_phases - phases, more_items - items


def emulated_step(
    recipe: Recipe,
    *,
    order: int = FORWARDS,
    limits: Limits = HOPPER,
    left: list[Tensor] | None = None,
    tf32: bool = False,
    rounded_bits: int = 13,
) -> FusedStep:
    """Return the fused step of a recipe on the CPU; `left` gets what is in shared memory after each launch."""
    recipe = recipe.pad()
    workspace = arrange(recipe, limits, tf32=tf32)
    assert workspace, "it does not fit into shared memory"

    def launch(workspace: Workspace, plan: Plan) -> None:
        made = library(weights_in_shared=workspace.weights_in_shared, tf32=tf32, rounded_bits=rounded_bits)
        assert made.plan_bytes() == ctypes.sizeof(plan)
        shared = torch.empty(workspace.shared_bytes // 8, dtype=torch.float64).view(torch.float32)
        made.emulate(ctypes.byref(plan), ctypes.c_int64(len(shared)), order, address(shared))
        if left is not None:
            left.append(shared)

    return FusedStep(recipe, CPU, "emulated", workspace, launch)
