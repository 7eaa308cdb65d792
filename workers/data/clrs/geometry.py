"""Geometry of CLRS-Text: segments and hulls. Legend: as in `algorithms`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import THOUSAND, Algorithm, Parts, list_of, move_first, within
from workers.data.clrs.writing import thousandths, write_fields, write_list
from workers.data.splits import Split, below

CANDIDATES = 32
ENDS = 4
RADIUS = 2


@dataclass(frozen=True, kw_only=True)
class SegmentsIntersect(Algorithm):
    """The test whether two segments meet (section 33.1); an example has four ends at any size.

    Ends are uniform on the unit square. Half of the examples intersect: each is the first of 32
    that does, or does not. The first x in its block of twenty and the others decide the split.
    """

    asked: str = "intersect"

    def numbers(self, size: int) -> int:
        return 2 + CANDIDATES * 2 * ENDS

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        drawn = below(fractions[..., 2:], THOUSAND).unflatten(-1, (CANDIDATES, 2 * ENDS))
        wanted = below(fractions[..., :1], 2) == 1
        chosen = (_intersect(drawn) == wanted).int().argmax(-1)
        ends = drawn.gather(-2, chosen[..., None, None].expand(*chosen.shape, 1, 2 * ENDS))[..., 0, :]
        return move_first(ends, fractions[..., 1], sizes[..., :0], split)  # the size plays no part

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        x, y = thousandths(example).split(ENDS, dim=-2)
        given = write_fields({"x": x, "y": y}, torch.full_like(sizes, ENDS))
        return Parts(given=given, answer=_intersect(example).long()[..., None])

    def longest(self, size: int) -> Parts[str]:
        ends = list_of("0.111", ENDS)
        return Parts(given=f"x: {ends}, y: {ends}", answer="0")


@dataclass(frozen=True, kw_only=True)
class ConvexHull(Algorithm):
    """The corners of the points' convex hull (section 33.3); both marches have the same answers.

    Points are uniform on a disk of radius 2. The first x in its block of twenty thousandths and the
    others decide the split. Of three points on a line the middle one is no corner.
    """

    asked: str = "in_hull"

    def numbers(self, size: int) -> int:
        return 1 + 2 * size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        uniform = fractions[..., 1:].double() / 2**32
        radius, angle = RADIUS * uniform[..., ::2].sqrt(), 2 * math.pi * uniform[..., 1::2]
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], -1).flatten(-2)
        points = within((THOUSAND * points).long(), 2 * sizes, 0)  # x and y, x and y, ...
        return move_first(points, fractions[..., 0], sizes, split)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        x, y = example[..., ::2], example[..., 1::2]
        index = torch.arange(x.shape[-1], device=x.device)
        missing, corners = index >= sizes, list[Tensor]()
        for point in range(x.shape[-1]):  # all others are left of one of them, or behind
            right, up = x - x[..., point : point + 1], y - y[..., point : point + 1]
            turn = right[..., :, None] * up[..., None, :] - up[..., :, None] * right[..., None, :]
            ahead = right[..., :, None] * right[..., None, :] + up[..., :, None] * up[..., None, :]
            left = (turn > 0) | ((turn == 0) & (ahead > 0)) | (missing | (index == point))[..., None, :]
            corners.append((left.all(-1) & ~missing & (index != point)).any(-1))
        given = write_fields({"x": thousandths(x), "y": thousandths(y)}, sizes)
        return Parts(given=given, answer=write_list(torch.stack(corners, -1).long()[..., None], sizes))

    def longest(self, size: int) -> Parts[str]:
        points = list_of("-1.111", size)
        return Parts(given=f"x: {points}, y: {points}", answer=list_of("0", size))


def _intersect(ends: Tensor) -> Tensor:
    """Return True where segments 0 to 1 and 2 to 3 of ends [..., 8], four x and four y, meet."""
    x, y = ends.unflatten(-1, (2, ENDS)).unbind(-2)

    def side(start: int, end: int, point: int) -> Tensor:
        """Return the sign of the turn from one through another to a point."""
        across = (x[..., end] - x[..., start]) * (y[..., point] - y[..., start])
        return (across - (y[..., end] - y[..., start]) * (x[..., point] - x[..., start])).sign()

    def holds(start: int, end: int, point: int) -> Tensor:
        """Return True where a point is on a segment."""
        between = [
            (torch.minimum(v[..., start], v[..., end]) <= v[..., point])
            & (v[..., point] <= torch.maximum(v[..., start], v[..., end]))
            for v in (x, y)
        ]
        return (side(start, end, point) == 0) & between[0] & between[1]

    crossing = (side(2, 3, 0) * side(2, 3, 1) < 0) & (side(0, 1, 2) * side(0, 1, 3) < 0)
    return crossing | holds(2, 3, 0) | holds(2, 3, 1) | holds(0, 1, 2) | holds(0, 1, 3)
