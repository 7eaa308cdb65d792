"""Linear splines on evenly spaced knots: evaluation, and the symmetrised versions of paper 002, Appendix D.

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
    """Return the spline with values `knots` [n] at evenly spaced positions, at `points` [..., m]; constant beyond the
    ends.

    On a CPU with a compiler in C++ (`workers.numerics.native.spline`), which costs a third.
    """
    scale = (knots.shape[-1] - 1) / (high - low)
    if native.covers(points) and knots.dtype == points.dtype:
        return native.interpolate(
            points, knots, *(torch.as_tensor(number, dtype=torch.float64) for number in (low, scale))
        )
    if points.device.type == "cpu":
        return gather_knots(points, knots, low, scale)
    place, cell, index = _cells(points, knots.shape[-1], low, scale)
    extended = torch.cat([knots[:1], knots, knots[-1:]])
    left, rise = _pick(extended[:-1], index), _pick(extended.diff(), index)
    return (left.view_as(points) + (place - cell) * rise.view_as(points)).to(points.dtype)


def gather_knots(points: Tensor, knots: Tensor, low: Number, scale: Number) -> Tensor:
    """Return the same of torch's own operations; knots are 1 / `scale` apart.

    A cell of slope 0 is added at either end, so that the ends need no clamping of their own. Gathering by position
    costs a third of indexing on a CPU, whose gradient is slow there. Half-precision points are placed in float32: eight
    bits cannot tell the cells apart.
    """
    place, cell, index = _cells(points, knots.shape[-1], low, scale)
    extended = torch.cat([knots[:1], knots, knots[-1:]])
    left, rise = extended[:-1].gather(0, index), extended.diff().gather(0, index)
    return (left.view_as(points) + (place - cell) * rise.view_as(points)).to(points.dtype)


def _cells(points: Tensor, count: int, low: Number, scale: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Locate points among the knots: their position, the knot before each and, in one row, the cell that it begins."""
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    place = (wide - low) * scale
    cell = place.detach().floor().nan_to_num(nan=-1.0).clamp(-1, count - 1)  # no number is in no cell: it stays none
    return place, cell, (cell + 1).to(torch.int64).flatten()


class _Pick(torch.autograd.Function):
    """Entries of a short table by their index. The gradient is a product with a one-hot matrix.

    Of a gather it would be a scatter, in which a GPU adds by atomics, in another order each time.
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

    knots: Tensor
    """[n] the average."""
    axis: Axis
    """What was reversed: x gives an even function, xy an odd one, both about the middle plus half the shift."""
    shift: int
    """Knots by which the image was moved to the right."""
    correlation: float
    """Cross-correlation of the knots with the moved image, relative to their own squared norm: at most 1."""


def symmetrise(knots: Tensor) -> Symmetrised:
    """Return the average of a spline [n] with the image that is most like it, as paper 002 (Appendix D) cleans
    splines.

    The images are reversed along x, y or both, and moved by whole knots to where their cross-correlation with the
    spline (zero beyond the ends) is largest; a moved image keeps its end value beyond its ends.
    """
    images: dict[Axis, Tensor] = {"x": knots.flip(0), "y": -knots, "xy": -knots.flip(0)}
    count, versions = len(knots), list[Symmetrised]()
    for axis, image in images.items():
        correlations = torch.nn.functional.conv1d(knots[None, None], image[None, None], padding=count - 1)[0, 0]
        best = int(correlations.argmax())
        shift = best - (count - 1)
        moved = image[(torch.arange(count) - shift).clamp(0, count - 1)]
        correlation = float(correlations[best] / knots.square().sum())
        versions.append(Symmetrised(knots=(knots + moved) / 2, axis=axis, shift=shift, correlation=correlation))
    return max(versions, key=lambda version: version.correlation)
