"""Parallel coordinates: a line for each trial over an axis for each of its values, some of which are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from graft.web.charts.axes import Axis
from graft.web.charts.canvas import FLOOR, LEFT, TOP, WIDTH, element, text, up

_FOOT = FLOOR + 7
_REACH = 16
"""Of an axis to both sides: where it can be dragged."""


class Column(NamedTuple):
    """One axis."""

    path: str
    axis: Axis
    kept: tuple[float, float] | None = None
    """The range that a person chose of it."""


class Row(NamedTuple):
    """One line: a value for each axis."""

    values: Sequence[float | None]
    """None: it does not have this one, and the line goes by the foot of the axis."""
    fifth: int
    """0: among the best fifth, 4: among the worst."""
    title: str
    is_kept: bool = True


def draw_parallel(columns: Sequence[Column], rows: Sequence[Row], title: str) -> Markup:
    """Return the rows, those that are kept over the others and the best of them above; a script lets ranges be
    dragged.
    """
    gap = (WIDTH - 2 * LEFT) / max(len(columns) - 1, 1)
    parts = [_draw_row(columns, row, gap) for row in sorted(rows, key=lambda row: (row.is_kept, -row.fifth))]
    for place, column in enumerate(columns):
        parts += _draw_column(column, LEFT + gap * place, is_low=place % 2 == 1)
    return element(Markup("".join(parts)), title)


def _draw_row(columns: Sequence[Column], row: Row, gap: float) -> str:
    places = " ".join(
        f"{LEFT + gap * place:.1f},{_FOOT if value is None else up(column.axis, value):.1f}"
        for place, (column, value) in enumerate(zip(columns, row.values, strict=True))
    )
    kind = f"q{row.fifth}" if row.is_kept else "out"
    return f'<polyline class="{kind}" points="{places}"><title>{escape(row.title)}</title></polyline>'


def _draw_column(column: Column, at: float, *, is_low: bool) -> list[Markup]:
    """Return an axis; `is_low`: its name stands a line lower, beside those of its neighbours."""
    axis = column.axis
    parts = [Markup('<line class="axis" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(at, TOP, FLOOR)]
    if axis.words:
        parts += [text(at + 4, up(axis, tick) + 4, axis.write(tick), "start") for tick in axis.ticks()]
    else:
        ends = ((axis.high, TOP - 4), (axis.low, FLOOR - 4))
        parts += [text(at + 4, height, axis.write(value), "start") for value, height in ends]
        parts.append(
            Markup(
                '<rect class="reach" x="{:.1f}" y="{}" width="{}" height="{}" data-path="{}" data-low="{!r}" '
                'data-high="{!r}" data-log="{:d}"/>'
            ).format(at - _REACH, TOP, 2 * _REACH, FLOOR - TOP, column.path, axis.low, axis.high, axis.log)
        )
    if column.kept:
        low, high = (up(axis, min(max(bound, axis.low), axis.high)) for bound in column.kept)
        parts.append(
            Markup('<rect class="kept" x="{:.1f}" y="{:.1f}" width="12" height="{:.1f}"/>').format(
                at - 6, min(low, high), max(abs(low - high), 1)
            )
        )
    parts.append(text(at, FLOOR + (28 if is_low else 14), column.path.rpartition(".")[2], "middle"))
    return parts
