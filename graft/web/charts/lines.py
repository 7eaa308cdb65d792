"""Points and lines over two axes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from graft.web.charts.axes import Axis
from graft.web.charts.canvas import across, frame, up

COLOURS = 8
"""Colours of lines that the style sheet has, `c0` to `c7`."""


class Point(NamedTuple):
    """One mark of a chart."""

    x: float
    y: float
    title: str
    href: str
    is_kept: bool = True
    """Whether it is in the ranges that a person chose."""


class Line(NamedTuple):
    """One line of a chart, from left to right."""

    name: str
    x: Sequence[float]
    y: Sequence[float]

    def as_steps(self) -> Line:
        """Return the line that keeps each y until the next x."""
        return Line(
            self.name, [one for one in self.x for _ in range(2)][1:], [one for one in self.y for _ in range(2)][:-1]
        )


def draw_points(
    points: Sequence[Point], lines: Sequence[Line], labels: tuple[str, str], title: str, *, x_may_be_log: bool = False
) -> Markup:
    """Points that lead somewhere, and lines, over two axes; `labels` of x and y."""
    x = Axis.over([p.x for p in points] + [value for line in lines for value in line.x], may_be_log=x_may_be_log)
    y = Axis.over([p.y for p in points] + [value for line in lines for value in line.y])
    # Written by f-strings: there are thousands, and Markup's own way of formatting takes five times as long.
    marks = [
        f'<a href="{escape(point.href)}" tabindex="-1"><circle class="{"" if point.is_kept else "out"}" '
        f'cx="{across(x, point.x):.1f}" cy="{up(y, point.y):.1f}" r="3">'
        f"<title>{escape(point.title)}</title></circle></a>"
        for point in sorted(points, key=lambda point: point.is_kept)
    ]
    drawn = [_draw_line(line, index, x, y) for index, line in enumerate(lines, 1 if points else 0)]
    return frame(Markup("".join([*marks, *drawn])), x, y, labels, title)


def _draw_line(line: Line, index: int, x: Axis, y: Axis) -> Markup:
    places = " ".join(f"{across(x, one):.1f},{up(y, other):.1f}" for one, other in zip(line.x, line.y, strict=True))
    return Markup('<polyline class="c{}" points="{}"><title>{}</title></polyline>').format(
        index % COLOURS, places, line.name
    )


def draw_curves(lines: Sequence[Line], labels: tuple[str, str], title: str, *, steps: bool = False) -> Markup:
    """Lines as a chart, with their numbers beside it, from which a script makes one to zoom and to read off.

    `steps`: each y stays until the next x.
    """
    y = Axis.over(value for line in lines for value in line.y)
    known = [line._asdict() for line in lines]
    numbers = {"title": title, "labels": labels, "log": y.log, "steps": steps, "lines": known}
    drawn = [line.as_steps() for line in lines] if steps else lines
    return Markup('<div class="curves" data-curves="{}">{}</div>').format(
        json.dumps(numbers, allow_nan=False), draw_points([], drawn, labels, title)
    )


def draw_cloud(kept: Sequence[Point], others: Sequence[Point], x: Axis, labels: tuple[str, str], title: str) -> Markup:
    """Dots that lead nowhere, `others` faint: two elements however many there are."""
    y = Axis.over(point.y for point in (*kept, *others))
    dots = [
        Markup('<path class="dots {}" d="{}"/>').format(
            kind, "".join(f"M{across(x, point.x):.0f} {up(y, point.y):.0f}h0" for point in points)
        )
        for kind, points in (("out", others), ("", kept))
    ]
    return frame(Markup("").join(dots), x, y, labels, title)
