"""Whether and how a device makes fused steps."""

from __future__ import annotations

import functools

import torch

from workers.engine.fused.plan import THREADS, KernelPlan, Limits, Workspace
from workers.engine.fused.step import FusedStep, arrange, find_obstacle
from workers.engine.fused.trust import find_fault
from workers.engine.machine.devices import gpus, is_usable
from workers.numerics.cuda import minimal
from workers.numerics.cuda.compiler import CompilerError, compiler_version, load_cubin
from workers.numerics.cuda.driver import Kernel, architecture_of
from workers.numerics.processors import instruction_set
from workers.training.recipe import Recipe


def obstacle(recipe: Recipe, device: torch.device) -> str | None:
    """Why trials of this recipe, with padded sizes, have no fused step on this device; None: they have.

    The first trial that could have one costs a check of the device, of a minute or so, whose result is kept.
    """
    if device.type != "cuda":
        return f"the fused step runs on a GPU, not on {device.type}"
    if reason := find_obstacle(recipe):
        return reason
    if arrange(recipe, limits_of(device)) is None:
        return "its arrays do not fit into the GPU's shared memory"
    return find_fault(torch.cuda.get_device_name(device), architecture_of(device), str(device))


def make_step(recipe: Recipe, device: torch.device) -> FusedStep:
    """The fused step; there is no obstacle."""
    workspace = arrange(recipe, limits_of(device))
    assert workspace, "there is no obstacle"

    def launch(workspace: Workspace, plan: KernelPlan) -> None:
        kernel = kernel_of(device, weights_in_shared=workspace.weights_in_shared)
        kernel(plan.lanes, THREADS, [plan], workspace.shared_bytes)

    return FusedStep(recipe, device, f"fused {instruction_set(device)}", workspace, launch)


def limits_of(device: torch.device) -> Limits:
    """What the device says of its shared memory."""
    found = torch.cuda.get_device_properties(device)
    return Limits(found.shared_memory_per_multiprocessor, found.shared_memory_per_block_optin)


@functools.cache
def kernel_of(device: torch.device, *, weights_in_shared: bool) -> Kernel:
    """The fused step's; raises RuntimeError if it does not compile or load."""
    cubin = load_cubin(minimal.SOURCE, architecture_of(device), minimal.options(weights_in_shared=weights_in_shared))
    return Kernel(cubin, minimal.NAME, device, limits_of(device).block)


def describe() -> str:
    """Whether the first GPU makes fused steps, and what compiles them; the first time that costs a check."""
    try:
        compiler = compiler_version()
    except CompilerError as error:
        return f"not used: {error}"
    if not gpus() or not is_usable("cuda"):
        return f"not used: no GPU that torch can use; {compiler} compiles it"
    device = torch.device("cuda", 0)
    fault = find_fault(torch.cuda.get_device_name(device), architecture_of(device), str(device))
    return f"not used: {fault}" if fault else f"used on cuda:0, where it has passed its check; compiled by {compiler}"
