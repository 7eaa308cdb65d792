"""What the native gradients share: where they run, where parameters lie, and how they are called."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from spaces.plugins import name_of
from workers.data.tasks import Batch, Task
from workers.networks.gradients.generated import Number
from workers.numerics.blocks import Blocks
from workers.numerics.native import address, library
from workers.numerics.parameters import Parameter

LOSSES = ("cross_entropy", "squared", "margin")
SUFFIXES = {torch.float32: "float32", torch.float64: "float64"}
"""Of the native functions' names."""


def find_library_obstacle(name: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why the gradient of this name cannot be computed in C++ in this precision on this device, or None."""
    if device.type != "cpu":
        return f"the native step runs on a CPU, not on {device.type}"
    if dtype not in SUFFIXES:
        return f"the native step knows float32 and float64, not {dtype}"
    return "there is no C++ compiler" if library(f"{name}_{SUFFIXES[dtype]}") is None else None


def unknown_loss(task: Task) -> str:
    """Why a task's loss keeps it from the native steps, and what would mend it."""
    if task.position_loss is not None:
        return f"the loss of {name_of(task)}, {task.position_loss!r}, is not known to the native step of this model"
    return (
        f"the loss of {name_of(task)} is not known to the native step; a task that says it by position_loss and "
        "position_targets trains natively (docs/how-to/plug-in.md, Make it fast)"
    )


def function_of(name: str, dtype: torch.dtype, what: str = "") -> Callable[..., int]:
    """Return the gradient's native function, or another one, `what`, of its library; there is no obstacle to it."""
    native = library(f"{name}_{SUFFIXES[dtype]}")
    assert native, "it is no obstacle"
    return getattr(native, f"{what or name}_{SUFFIXES[dtype]}")


def call(function: Callable[[object], int], plan: ctypes.Structure, tensors: Mapping[str, Tensor | None]) -> None:
    """Call it on a plan whose pointers are to these tensors, contiguous each."""
    for name, tensor in tensors.items():
        setattr(plan, name, address(tensor) if tensor is not None else None)
    if function(ctypes.byref(plan)):
        raise MemoryError("the native step")


def gradient_tensors(task: Task, parameters: Tensor, batch: Batch, blocks: Blocks | None = None) -> dict[str, Tensor]:
    """Return the task's tensors of a gradient: targets and weights of positions, the gradient, the loss [L]."""
    targets, weights = task.position_targets(batch, parameters.dtype)
    return {
        "gradient": blocks.empty_like(parameters) if blocks else torch.empty_like(parameters),
        "loss_values": parameters.new_empty(len(parameters)),
        "targets": targets.contiguous(),
        "weights": weights.contiguous(),
    }


def starts_of(parameters: Mapping[str, Parameter]) -> tuple[dict[str, int], int]:
    """Where each parameter starts in the flat vector, and how long that is."""
    sizes = [math.prod(parameter.shape) for parameter in parameters.values()]
    *starts, total = itertools.accumulate(sizes, initial=0)
    return dict(zip(parameters, starts, strict=True)), total


def per_lane(knob: Number, lanes: int, device: torch.device | None = None) -> Tensor:
    """[L] float64, also of a switch that is off in all lanes; `device`: if it is not where the knob is."""
    return torch.as_tensor(knob, dtype=torch.float64, device=device).expand(lanes)
