"""The <svg> element of a chart: its size, its grid with numbers, its texts."""

from __future__ import annotations

from markupsafe import Markup

from graft.web.charts.axes import Axis

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 68, 14, 26, 40
FLOOR = HEIGHT - BOTTOM
_EDGE = 0.96
"""Of the width of an axis."""
_MOST_LETTERS = 14
"""Of a word at a tick."""


def element(body: Markup, title: str) -> Markup:
    """Return the drawing as an element that a page holds."""
    return Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, HEIGHT, title, body
    )


def frame(body: Markup, x: Axis, y: Axis, labels: tuple[str, str], title: str) -> Markup:
    """Return the drawing over a grid with numbers; `labels` are those of x and y."""
    parts: list[Markup] = []
    for tick in y.ticks():
        at = up(y, tick)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(LEFT, WIDTH - RIGHT, at, at)
        )
        parts.append(text(LEFT - 6, at + 4, y.write(tick), "end"))
    for tick in x.ticks():  # a number at the right edge would be cut off
        anchor = "end" if x.place(tick) > _EDGE else "middle"
        parts.append(text(across(x, tick), FLOOR + 15, x.write(tick)[:_MOST_LETTERS], anchor))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, labels[0], "middle"))
    parts.append(text(LEFT, TOP - 11, labels[1], "start"))
    return element(Markup("").join(parts) + body, title)


def text(x: float, y: float, words: str, anchor: str) -> Markup:
    """Return a text whose `start`, `middle` or `end` is at a place."""
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, words)


def across(axis: Axis, value: float) -> float:
    """Where a value is from left to right."""
    return LEFT + (WIDTH - LEFT - RIGHT) * axis.place(value)


def up(axis: Axis, value: float) -> float:
    """Where a value is from the top down."""
    return FLOOR - (FLOOR - TOP) * axis.place(value)
