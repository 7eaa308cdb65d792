"""Linear splines on evenly spaced knots: evaluation, and the symmetrised versions of paper 002, Appendix D.

Legend: n knots, m points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from workers.numerics.native import spline as native

Number = float | Tensor
Axis = Literal["x", "y", "xy"]


def positions(count: int, low: Number, high: Number) -> Tensor:
    """[n] float64: knots spread evenly over [low, high], both ends included."""
    return low + (high - low) * torch.linspace(0, 1, count, dtype=torch.float64)


def interpolate(points: Tensor, knots: Tensor, low: Number, high: Number) -> Tensor:
    """The spline with values `knots` [n] at evenly spaced positions, at `points` [..., m]; constant beyond the ends.

    On a CPU with a compiler in C++ (`workers.numerics.native.spline`), which costs a third.
    """
    scale = (knots.shape[-1] - 1) / (high - low)
    if native.covers(points) and knots.dtype == points.dtype:
        return native.interpolate(points, knots, _exact(low), _exact(scale))
    return gather_knots(points, knots, low, scale)


def gather_knots(points: Tensor, knots: Tensor, low: Number, scale: Number) -> Tensor:
    """The same of torch's own operations; knots are 1 / `scale` apart.

    A cell of slope 0 is added at either end, so that the ends need no clamping of their own. Gathering by position
    costs a third of indexing on a CPU, whose gradient is slow there. Half-precision points are placed in float32: eight
    bits cannot tell the cells apart.
    """
    count = knots.shape[-1]
    wide = points.to(torch.promote_types(points.dtype, torch.float32))
    place = (wide - low) * scale
    cell = place.detach().floor().nan_to_num(nan=-1.0).clamp(-1, count - 1)  # no number is in no cell: it stays none
    index = (cell + 1).to(torch.int64).flatten()
    extended = torch.cat([knots[:1], knots, knots[-1:]])
    left, rise = extended[:-1].gather(0, index), extended.diff().gather(0, index)
    return (left.view_as(points) + (place - cell) * rise.view_as(points)).to(points.dtype)


def _exact(number: Number) -> Tensor:
    return torch.as_tensor(number, dtype=torch.float64)


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
    """The average of a spline [n] with the image that is most like it, as paper 002 (Appendix D) cleans splines.

    The images are reversed along x, y or both, and moved by whole knots to where their cross-correlation with the
    spline (zero beyond the ends) is largest; a moved image keeps its end value beyond its ends.
    """
    images: dict[Axis, Tensor] = {"x": knots.flip(0), "y": -knots, "xy": -knots.flip(0)}
    versions = [_average(knots, image, axis) for axis, image in images.items()]
    return max(versions, key=lambda version: version.correlation)


def _average(knots: Tensor, image: Tensor, axis: Axis) -> Symmetrised:
    count = knots.shape[0]
    correlations = torch.nn.functional.conv1d(knots[None, None], image[None, None], padding=count - 1)[0, 0]
    best = int(correlations.argmax())
    shift = best - (count - 1)
    moved = image[(torch.arange(count) - shift).clamp(0, count - 1)]
    return Symmetrised(
        knots=(knots + moved) / 2,
        axis=axis,
        shift=shift,
        correlation=float(correlations[best] / knots.square().sum()),
    )
