"""The fused step on a device: whether it is used there, and its kernel."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict

import torch

from spaces import plugins
from workers.engine.fused.plan import Limits, Plan, Workspace
from workers.engine.fused.step import FusedStep, arrange
from workers.engine.fused.step import find_obstacle as find_step_obstacle
from workers.engine.fused.trust import TIMED, Rates, Timing, find_fault, find_rates, kept_rates
from workers.engine.machine.devices import gpus, is_usable
from workers.engine.machine.side_by_side import alone
from workers.numerics.cuda import minimal
from workers.numerics.cuda.compiler import CompilerError, compiler_version, load_cubin
from workers.numerics.cuda.driver import Kernel, architecture_of
from workers.numerics.processors import instruction_set
from workers.training.recipe import SECTIONS, Recipe


def find_obstacle(recipe: Recipe, device: torch.device, lanes: int) -> str | None:
    """Return why packs of this recipe, with padded sizes, have no fused step here, or None.

    The first trial that could have one costs a check of the device, of a minute or so, and the
    first pack of each structure some seconds, to time both steps at about its width. The answers
    are kept.
    """
    if device.type != "cuda":
        return f"the fused step runs on a GPU, not on {device.type}"
    if reason := find_step_obstacle(recipe):
        return reason
    if arrange(recipe, limits_of(device)) is None:
        return "its arrays do not fit into the GPU's shared memory"
    if fault := _fault_of(device):
        return fault
    rates = rates_of(recipe, device, lanes)
    if rates is None:
        return "the fused step was not timed beside the traced one"
    return f"the fused step has {rates.describe()}" if rates.fused < rates.traced else None


def rates_of(recipe: Recipe, device: torch.device, lanes: int) -> Rates | None:
    """Return both steps' speed for such a pack at the nearest of TIMED widths; None if unknown."""
    where = torch.cuda.get_device_name(device), architecture_of(device), str(device)
    with alone(device):
        return find_rates(_timing_of(recipe, lanes), *where)


def describe_kept_rates(recipe: Recipe, gpu: str) -> list[str]:
    """Return a line for each width at which both steps were timed here, on a GPU of this name."""
    if find_step_obstacle(recipe):
        return []
    return [rates.describe() for rates in kept_rates(_timing_of(recipe, TIMED[0]), gpu)]


def _timing_of(recipe: Recipe, lanes: int) -> Timing:
    parts = {section: getattr(recipe, section) for section in SECTIONS if section != "training"}
    training = asdict(recipe.training)
    shared = {name: training[name] for name in training if name not in ("steps", "validate_every")}
    structures = {name: plugins.structure_of(part) for name, part in parts.items()}
    configs = {name: plugins.config_of(part) for name, part in parts.items()}
    # The process that times them knows no schedule from outside, and none changes a step's speed.
    configs["optimizer"] = {**configs["optimizer"], "schedule": {"name": "constant"}}
    return Timing(
        structure=plugins.canonical_json(structures | shared),
        configuration=plugins.canonical_json(configs | {"training": training}),
        lanes=min(TIMED, key=lambda timed: abs(math.log(timed / lanes))),
    )


def make_step(recipe: Recipe, device: torch.device, *, tf32: bool = False) -> FusedStep:
    """Return the fused step of a recipe without an obstacle; with `tf32`, that of TF32.

    The latter's numbers differ (`find_tile_obstacle`), and no trial is trained by it.
    """
    workspace = arrange(recipe, limits_of(device), tf32=tf32)
    assert workspace, "there is no obstacle"

    def launch(workspace: Workspace, plan: Plan) -> None:
        kernel = kernel_of(device, weights_in_shared=workspace.weights_in_shared, tf32=tf32)
        kernel(plan.blocks, workspace.threads, [plan], workspace.shared_bytes)

    step = FusedStep(recipe, device, f"fused {'TF32 ' if tf32 else ''}{instruction_set(device)}", workspace, launch)
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    step.most_blocks = multiprocessors * limits_of(device).blocks_at_once(workspace.shared_bytes)
    return step


def limits_of(device: torch.device) -> Limits:
    """Return the limits of shared memory, as the device states them."""
    properties = torch.cuda.get_device_properties(device)
    return Limits(properties.shared_memory_per_multiprocessor, properties.shared_memory_per_block_optin)


@functools.cache
def kernel_of(device: torch.device, *, weights_in_shared: bool, tf32: bool = False) -> Kernel:
    """Return the fused step's kernel; raises RuntimeError if it does not compile or load."""
    options = minimal.options(weights_in_shared=weights_in_shared, tf32=tf32)
    cubin = load_cubin(minimal.SOURCE, architecture_of(device), options)
    return Kernel(cubin, minimal.NAME, device, limits_of(device).block)


def describe() -> str:
    """Return whether the first GPU makes fused steps, and their compiler; checks it at first."""
    try:
        compiler = compiler_version()
    except CompilerError as error:
        return f"not used: {error}"
    if not gpus() or not is_usable("cuda"):
        return f"not used: no GPU that torch can use; {compiler} compiles it"
    device = torch.device("cuda", 0)
    if fault := _fault_of(device):
        return f"not used: {fault}"
    return f"used on cuda:0, where it has passed its check; compiled by {compiler}"


def _fault_of(device: torch.device) -> str | None:
    with alone(device):  # so that several workers ask for one check
        return find_fault(torch.cuda.get_device_name(device), architecture_of(device), str(device))
