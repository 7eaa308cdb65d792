"""Linear splines in C++, as an operation of torch with a gradient and a rule for stacked lanes.

They are those of `activations/_spline.py`, whose gathers and scatters cost several times as much.

Legend: L lanes, m points of a lane, n knots.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from workers.numerics.native import address, library
from workers.numerics.tensors import fold_lanes, unfold_lanes

_NAMES = {torch.float32: "float32", torch.float64: "float64"}
_Dims = tuple[int | None, ...]


def covers(points: Tensor) -> bool:
    """Return True if points of this type, on this device, can be interpolated here."""
    return points.device.type == "cpu" and points.dtype in _NAMES and library("spline") is not None


def interpolate(points: Tensor, knots: Tensor, low: Tensor, scale: Tensor) -> Tensor:
    """Return the spline at `points` [...], constant beyond its ends, of values `knots` [n].

    The knots lie at low, low + 1 / scale, ... `low` and `scale`, float64 scalars, have no gradient.
    """
    values = _Spline.apply(points.reshape(1, -1), knots[None], low[None], scale[None])
    return values.view(points.shape)


@torch.library.custom_op("graft::spline", mutates_args=(), device_types="cpu")
def _values(points: Tensor, knots: Tensor, low: Tensor, scale: Tensor) -> Tensor:
    """Return the values [L, m] at points [L, m], of knots [L, n], low and scale [L]."""
    tensors = [tensor.contiguous() for tensor in (points, knots, low, scale)]
    values = torch.empty_like(tensors[0])
    _run("spline", points, knots, *tensors, values)
    return values


_values.register_fake(lambda points, *_: torch.empty_like(points))


@torch.library.custom_op("graft::spline_gradient", mutates_args=(), device_types="cpu")
def _gradients(gradient: Tensor, points: Tensor, knots: Tensor, low: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return gradients [L, m] by points and [L, n] by knots, from that by values [L, m]."""
    tensors = [tensor.contiguous() for tensor in (gradient, points, knots, low, scale)]
    gradients = torch.empty_like(tensors[1]), torch.empty_like(tensors[2])
    _run("spline_gradient", points, knots, *tensors, *gradients)
    return gradients


def _run(name: str, points: Tensor, knots: Tensor, *tensors: Tensor) -> None:
    native = library("spline")
    assert native, "there was a compiler when the operation was recorded"
    sizes = ctypes.c_int(len(points)), ctypes.c_ssize_t(points.shape[1]), ctypes.c_int(knots.shape[1])
    if getattr(native, f"{name}_{_NAMES[points.dtype]}")(*sizes, *map(address, tensors)):
        raise MemoryError("the native spline")


class _Spline(torch.autograd.Function):
    @staticmethod
    def forward(points: Tensor, knots: Tensor, low: Tensor, scale: Tensor) -> Tensor:
        return _values(points, knots, low, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return (*_Gradients.apply(gradients[0], *ctx.saved_tensors), None, None)

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *tensors: Tensor) -> Any:
        values = _Spline.apply(*fold_lanes(info.batch_size, in_dims, tensors))
        return unfold_lanes(info.batch_size, values), 0


class _Gradients(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, points: Tensor, knots: Tensor, low: Tensor, scale: Tensor) -> Any:
        return _gradients(gradient, points, knots, low, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no second derivative."""

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *tensors: Tensor) -> Any:
        parts = _Gradients.apply(*fold_lanes(info.batch_size, in_dims, tensors))
        return tuple(unfold_lanes(info.batch_size, part) for part in parts), (0, 0)
