"""The fused step's kernel on this processor: a block after another one, compiled by the C++ compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from workers.engine.fused.plan import Limits, Plan, Workspace
from workers.engine.fused.step import FusedStep, arrange
from workers.engine.fused_check import _start
from workers.numerics import cuda
from workers.numerics.native import address, cache_folder
from workers.numerics.processors import describe_processor
from workers.training.recipe import Recipe

FORWARDS, BACKWARDS, SHUFFLED = range(3)
"""In which the work between two meetings of a block's threads is done."""
CPU = torch.device("cpu")
HOPPER = Limits(228 << 10, 227 << 10)
FLAGS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared")


@functools.cache
def library(*, weights_in_shared: bool) -> ctypes.CDLL:
    """Return the emulated kernel, compiled once on a machine, as the native steps are."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    folder = Path(cuda.__file__).parent
    flags = [*FLAGS, f"-DWEIGHTS_IN_SHARED={int(weights_in_shared)}"]
    sources = [path.read_text() for path in sorted(folder.iterdir()) if path.suffix in (".cpp", ".hpp", ".cu")]
    key = hashlib.sha256("\0".join([*sources, *flags, *compiler, describe_processor("cpu")]).encode()).hexdigest()
    made = cache_folder() / f"emulated-{key[:16]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as aside:
            file = Path(aside) / made.name
            command = [*compiler, *flags, str(folder / "emulated.cpp"), "-o", str(file)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            file.replace(made)
    made_library = ctypes.CDLL(str(made))
    made_library.phases.restype = made_library.items.restype = ctypes.c_int64
    return made_library


def count_phases(recipe: Recipe) -> tuple[int, int]:
    """Return the meetings of a block's threads, and the work between them, of one step of a lane."""
    found: list[tuple[int, int]] = []
    step = emulated_step(recipe)
    made = library(weights_in_shared=step.workspace.weights_in_shared)
    for steps in (1, 2):
        before = made.phases(), made.items()
        step.advance(*_start(recipe, 1, CPU), steps)
        found.append((made.phases() - before[0], made.items() - before[1]))
    (phases, items), (more_phases, more_items) = found
    return more_phases - phases, more_items - items


def emulated_step(
    recipe: Recipe, *, order: int = FORWARDS, limits: Limits = HOPPER, left: list[Tensor] | None = None
) -> FusedStep:
    """Return the fused step of a recipe on the CPU; `left` gets what is in shared memory after each launch."""
    recipe = recipe.pad()
    workspace = arrange(recipe, limits)
    assert workspace, "it does not fit into shared memory"

    def launch(workspace: Workspace, plan: Plan) -> None:
        made = library(weights_in_shared=workspace.weights_in_shared)
        assert made.plan_bytes() == ctypes.sizeof(plan)
        shared = torch.empty(workspace.shared_bytes // 8, dtype=torch.float64).view(torch.float32)
        made.emulate(ctypes.byref(plan), ctypes.c_int64(len(shared)), order, address(shared))
        if left is not None:
            left.append(shared)

    return FusedStep(recipe, CPU, "emulated", workspace, launch)
