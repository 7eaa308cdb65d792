"""A metric over conditions of two numbers as a picture: a panel for each scorer, all with one scale of colours."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from graft.report.drawing import INK, styled, to_svg
from graft.report.words import number

_CELL = (0.5, 0.3)
"""Inches."""
_MOST_NUMBERS = 12
"""Values along an axis up to which cells have their numbers written in them."""


def map_figure(cells: pl.DataFrame, place: int) -> str:
    """One pair of numbers of `search.analysis.maps.maps`, as an <svg> element."""
    across, up = cells.row(0, named=True)["across"], cells.row(0, named=True)["up"]
    xs, ys = (cells[name].unique().sort().to_list() for name in ("x", "y"))
    scorers = cells["scorer"].unique().sort().to_list()
    values = cells["value"].drop_nulls().to_list()
    low, high = min(values), max(values)
    small = max(len(xs), len(ys)) <= _MOST_NUMBERS
    width = max(2.2, len(xs) * (_CELL[0] if small else 0.12) + 0.8)
    with styled():
        size = (width * len(scorers) + 0.8, max(1.8, len(ys) * (_CELL[1] if small else 0.1) + 1))
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(1, len(scorers), squeeze=False, sharey=True)[0]
        for axes, scorer in zip(panels, scorers, strict=True):
            known = {(x, y): value for x, y, value in cells.filter(scorer=scorer).select("x", "y", "value").rows()}
            rows = [[known.get((x, y)) for x in xs] for y in ys]
            shades = [[float("nan") if value is None else value for value in row] for row in rows]
            axes.imshow(shades, cmap="cividis", vmin=low, vmax=high, aspect="auto", origin="lower")
            for row, found in enumerate(rows if small else []):
                for column, value in enumerate(found):
                    bright = value is not None and high > low and (value - low) / (high - low) > 0.6
                    ink = INK if bright else "white"
                    axes.text(column, row, number(value), ha="center", va="center", fontsize=7, color=ink)
            axes.grid(visible=False)
            every = max(1, len(xs) // 6), max(1, len(ys) // 6)
            axes.set_xticks(range(0, len(xs), every[0]), [f"{x:g}" for x in xs[:: every[0]]])
            axes.set_yticks(range(0, len(ys), every[1]), [f"{y:g}" for y in ys[:: every[1]]])
            axes.set(xlabel=across, title=scorer)
        panels[0].set_ylabel(up)
        figure.colorbar(panels[0].images[0], ax=panels)
        return to_svg(figure, f"figure{place}")
