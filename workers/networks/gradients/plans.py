"""The shared part of native gradients: where they run, the flat vector, and their calls."""

from __future__ import annotations

import ctypes
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from spaces.plugins import name_of
from workers.data.tasks import Batch, Task
from workers.networks.gradients.row_function_cache import Number
from workers.numerics.blocks import Blocks
from workers.numerics.native import address, library
from workers.numerics.parameters import Parameter
from workers.numerics.randomness import SiteStreams

LOSSES = ("cross_entropy", "squared", "margin")
SUFFIXES = {torch.float32: "float32", torch.float64: "float64"}
"""Suffixes of the native functions' names."""


def find_library_obstacle(name: str, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why this gradient cannot be computed in C++ in this precision here, or None."""
    if device.type != "cpu":
        return f"the native step runs on a CPU, not on {device.type}"
    if dtype not in SUFFIXES:
        return f"the native step knows float32 and float64, not {dtype}"
    return "there is no C++ compiler" if library(f"{name}_{SUFFIXES[dtype]}") is None else None


def unknown_loss(task: Task) -> str:
    """Return why a task's loss is not native, and what would mend it."""
    if task.position_loss is not None:
        return f"the loss of {name_of(task)}, {task.position_loss!r}, is not known to the native step of this model"
    return (
        f"the loss of {name_of(task)} is not known to the native step; a task that says it by position_loss and "
        "position_targets trains natively (docs/how-to/plug-in.md, Make it fast)"
    )


def function_of(name: str, dtype: torch.dtype, what: str = "") -> Callable[..., int]:
    """Return the native gradient, or the function `what` of its library; there is no obstacle."""
    native = library(f"{name}_{SUFFIXES[dtype]}")
    assert native, "it is no obstacle"
    return getattr(native, f"{what or name}_{SUFFIXES[dtype]}")


class PlannedModel(ABC):
    """A model, of one structure and task, whose native function reads a plan: sizes and tensors."""

    def __init__(self, name: str, dtype: torch.dtype, sizes: Sequence[str], tensors: Sequence[str]) -> None:
        """Prepare plans of the function `name`, whose fields are `sizes` and `tensors`."""
        self._function = function_of(name, dtype)
        self._dtype = dtype
        fields = [(size, ctypes.c_int64) for size in sizes] + [(tensor, ctypes.c_void_p) for tensor in tensors]
        self._structure = type("Plan", (ctypes.Structure,), {"_fields_": fields})
        self._sizes: Mapping[str, int] = {}
        """Sizes that are the same in every call."""
        self._blocks = Blocks()

    def gradient(
        self, model: Any, task: Task, parameters: Tensor, batch: Batch, streams: SiteStreams
    ) -> tuple[Tensor, Tensor]:
        targets, weights = task.position_targets(batch, parameters.dtype)
        gradient, loss = self._blocks.empty_like(parameters), parameters.new_empty(len(parameters))
        wanted = {"gradient": gradient, "loss_values": loss, "targets": targets.contiguous()}
        self._call(model, parameters, batch, {**wanted, "weights": weights.contiguous()}, streams)
        return gradient, loss

    def outputs(self, model: Any, task: Task, parameters: Tensor, batch: Batch) -> Tensor:
        wanted = task.evaluated_positions(batch)
        outputs = parameters.new_empty(self._shape_of_outputs(batch["inputs"]))
        weights = wanted.to(self._dtype).contiguous() if wanted is not None else None
        self._call(model, parameters, batch, {"outputs_values": outputs, "weights": weights}, None)
        return outputs

    @abstractmethod
    def _shape_of_outputs(self, inputs: Tensor) -> tuple[int, ...]:
        """Return the shape of outputs for inputs [L, N, ...]."""

    @abstractmethod
    def _describe(
        self, model: Any, batch: Batch, streams: SiteStreams | None
    ) -> tuple[Mapping[str, int], Mapping[str, Tensor | None]]:
        """Return a call's own sizes and tensors; `streams`: of dropout, None for outputs."""

    def _call(
        self,
        model: Any,
        parameters: Tensor,
        batch: Batch,
        wanted: Mapping[str, Tensor | None],
        streams: SiteStreams | None,
    ) -> None:
        """Fill in a plan and call the function; `wanted`: tensors of a gradient, or of outputs."""
        inputs = batch["inputs"]
        assert parameters.shape[1] == self._sizes["total"], "the parameters are those of the model"
        sizes, tensors = self._describe(model, batch, streams)
        plan = self._structure(**self._sizes, **sizes, lanes=inputs.shape[0], batch=inputs.shape[1])
        every = {
            "parameters": parameters.contiguous(),
            "inputs": (inputs.to(self._dtype) if inputs.is_floating_point() else inputs).contiguous(),
            "lengths": batch["lengths"].contiguous() if "lengths" in batch else None,
            **tensors,
            **wanted,
        }
        for name, tensor in every.items():
            setattr(plan, name, address(tensor) if tensor is not None else None)
        if self._function(ctypes.byref(plan)):
            raise MemoryError("the native step")


def starts_of(parameters: Mapping[str, Parameter]) -> tuple[dict[str, int], int]:
    """Return where each parameter starts in the flat vector, and the vector's length."""
    sizes = [math.prod(parameter.shape) for parameter in parameters.values()]
    *starts, total = itertools.accumulate(sizes, initial=0)
    return dict(zip(parameters, starts, strict=True)), total


def per_lane(knob: Number, lanes: int, device: torch.device | None = None) -> Tensor:
    """Return a knob as [L] float64, also a switch that is off; `device`: if not the knob's."""
    return torch.as_tensor(knob, dtype=torch.float64, device=device).expand(lanes)
