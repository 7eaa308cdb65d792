"""The grid of averages as a picture: one cell for each pair of powers."""

from __future__ import annotations

import polars as pl
from matplotlib.figure import Figure

from graft.report.drawing import INK, styled, to_svg
from graft.report.words import percent

_CELL = (0.62, 0.36)
"""Inches."""
_PLAIN = "EMA"


def powers_figure(powers: pl.DataFrame, place: int) -> str:
    """The change of the mean against raw parameters for each kappa (rows) and eta (columns), as an <svg> element.

    `powers`: as `search.analysis.powers.compare` gives it. Green is better where less is better, and told by the
    sign alone where it is not: colours only set apart less from more.
    """
    kappas = powers["kappa"].unique().sort().to_list()
    etas = [*powers["eta"].drop_nulls().unique().sort().to_list(), None]
    cells = {(kappa, eta): change for kappa, eta, change in powers.select("kappa", "eta", "change").rows()}
    most = max([abs(change) for change in cells.values() if change is not None], default=0) or 1
    with styled():
        figure = Figure(figsize=(len(etas) * _CELL[0] + 1, len(kappas) * _CELL[1] + 1), layout="constrained")
        axes = figure.subplots()
        values = [[cells.get((kappa, eta)) for eta in etas] for kappa in kappas]
        shades = [[float("nan") if value is None else value for value in row] for row in values]
        axes.imshow(shades, cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto", origin="lower")
        for row, changes in enumerate(values):
            for column, change in enumerate(changes):
                ink = "white" if change is not None and abs(change) > 0.65 * most else INK
                axes.text(column, row, percent(change), ha="center", va="center", fontsize=7.5, color=ink)
        axes.grid(visible=False)
        axes.set_xticks(range(len(etas)), [_PLAIN if eta is None else f"{eta:g}" for eta in etas])
        axes.set_yticks(range(len(kappas)), [f"{kappa:g}" for kappa in kappas])
        axes.set(xlabel="BEMA power η", ylabel="EMA power κ")
        return to_svg(figure, f"figure{place}")
