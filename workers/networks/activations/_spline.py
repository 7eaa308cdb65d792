"""Linear splines on evenly spaced knots, and their symmetrised versions (paper 002, Appendix D).

Legend: n knots, m points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from workers.numerics.native import spline as native
from workers.numerics.tensors import one_hot

Number = float | Tensor
Axis = Literal["x", "y", "xy"]


def positions(count: int, low: Number, high: Number) -> Tensor:
    """Return knots [n] float64 spread evenly over [low, high], both ends included."""
    return low + (high - low) * torch.linspace(0, 1, count, dtype=torch.float64)


def interpolate(points: Tensor, knots: Tensor, low: Number, high: Number) -> Tensor:
    """Return the spline with values `knots` [n] at `points` [..., m]; constant beyond its ends.

    C++ (`workers.numerics.native.spline`) takes a third of the time on a CPU.
    """
    scale = (knots.shape[-1] - 1) / (high - low)
    if native.covers(points) and knots.dtype == points.dtype:
        ends = (torch.as_tensor(number, dtype=torch.float64) for number in (low, scale))
        return native.interpolate(points, knots, *ends)
    if points.device.type == "cpu":
        return gather_knots(points, knots, low, scale)
    position, cell, index = _cells(points, knots.shape[-1], low, scale)
    extended = torch.cat([knots[:1], knots, knots[-1:]])
    left, rise = _pick(extended[:-1], index), _pick(extended.diff(), index)
    return (left.view_as(points) + (position - cell) * rise.view_as(points)).to(points.dtype)


def gather_knots(points: Tensor, knots: Tensor, low: Number, scale: Number) -> Tensor:
    """Interpolate by torch's own operations; knots are 1 / `scale` apart.

    A cell of slope 0 at either end saves clamping. On a CPU gathering costs a third of indexing,
    whose gradient is slow. Half-precision points are placed in float32, to tell cells apart.
    """
    position, cell, index = _cells(points, knots.shape[-1], low, scale)
    extended = torch.cat([knots[:1], knots, knots[-1:]])
    left, rise = extended[:-1].gather(0, index), extended.diff().gather(0, index)
    return (left.view_as(points) + (position - cell) * rise.view_as(points)).to(points.dtype)


def _cells(points: Tensor, count: int, low: Number, scale: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Return points' positions among the knots, the knots before them and, flat, their cells."""
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    position = (wide - low) * scale
    cell = position.detach().floor().nan_to_num(nan=-1.0).clamp(-1, count - 1)
    return position, cell, (cell + 1).to(torch.int64).flatten()


class _Pick(torch.autograd.Function):
    """Entries of a short table by their index; the gradient is a product with a one-hot matrix.

    A gather's is a scatter, which on a GPU adds by atomics, in a different order each time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor, index: Tensor) -> Tensor:
        return table.gather(0, index)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.size = table.shape[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        [gradient], [index] = gradients, ctx.saved_tensors
        return one_hot(index, ctx.size, gradient.dtype).mT @ gradient, None


def _pick(table: Tensor, index: Tensor) -> Tensor:
    """Return entries [m] of a table [n]."""
    picked: Any = _Pick.apply(table, index)
    return picked


@dataclass(frozen=True, kw_only=True)
class Symmetrised:
    """A spline averaged with its own mirror image."""

    knots: Tensor  # [n] the average
    axis: Axis
    """The reversed axes; x gives an even function, xy an odd one, about the middle + shift / 2."""
    shift: int
    """Knots by which the image was moved to the right."""
    correlation: float
    """Cross-correlation of the knots with the image over the knots' squared norm: at most 1."""


def symmetrise(knots: Tensor) -> Symmetrised:
    """Return the average of a spline [n] and its most similar image (paper 002, Appendix D).

    Images are reversed along x, y or both, and moved by whole knots to the largest
    cross-correlation with the spline, zero beyond its ends; a moved image keeps its end value.
    """
    images: dict[Axis, Tensor] = {"x": knots.flip(0), "y": -knots, "xy": -knots.flip(0)}
    pad, versions = len(knots) - 1, list[Symmetrised]()
    for axis, image in images.items():
        correlations = torch.nn.functional.conv1d(knots[None, None], image[None, None], padding=pad)[0, 0]
        shift = int(correlations.argmax()) - pad
        moved = image[(torch.arange(len(knots)) - shift).clamp(0, pad)]
        correlation = float(correlations.max() / knots.square().sum())
        average = (knots + moved) / 2
        versions.append(Symmetrised(knots=average, axis=axis, shift=shift, correlation=correlation))
    return max(versions, key=lambda version: version.correlation)
