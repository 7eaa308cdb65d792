"""Averages from one training run by the powers of EMA and BEMA (paper 003, section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl
from matplotlib.figure import Figure

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import INK, draw_cells, figure_style, to_svg
from graft.report.rendering.formatting import number, percent, percent_with_margin
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.study.averaging_grid import CONDITIONS, compare_powers
from search.analysis.study.scores import Reserved

_RESERVED = Reserved(conditions=CONDITIONS)
_CELL = (0.62, 0.36)
"""Width and height of a cell, in inches."""


@final
class AveragingGrid(Section):
    """The metric's change against raw parameters, for studies with `averaging: bema_grid`."""

    part = Part.FIGURES
    after = "distribution"
    subject = "trials"
    figures = 1
    reserved = _RESERVED

    @cached_property
    def powers(self) -> pl.DataFrame:
        """A row for each pair of powers (search.analysis.study.averaging_grid)."""
        scores, raw = self.data.scores.of_reserved(_RESERVED), self.data.scores.of_objective()
        return compare_powers(scores, raw, self.data.metric, self.data.condition)

    @property
    def applies(self) -> bool:
        return not self.powers.is_empty()

    @property
    def caption(self) -> str:
        """The caption, with the best cell where that has an interval."""
        minimize = self.data.study["direction"] == "minimize"
        most: Any = self.powers["trials"].max()
        caption = (
            f"Averages from one training run: the change of the mean {self.data.metric} over {number(most)} trials, "
            f"each with its last validation, against the raw parameters ({number(self.powers['raw'][0])}), for EMA "
            "power κ and BEMA power η (paper 003, section 6)."
        )
        best = self.powers.drop_nulls("change").sort("change", descending=not minimize).head(1)
        for row in best.drop_nulls("margin").iter_rows(named=True):
            eta = "" if row["eta"] is None else f", η = {row['eta']:g}"
            change = percent_with_margin(row["change"], row["margin"])
            caption += (
                f" The {'lowest' if minimize else 'highest'} is κ = {row['kappa']:g}{eta}: {change}, "
                "the interval corrected for all cells (Bonferroni)."
            )
        return caption

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        # A row for each kappa, a column for each eta. Colours only set apart less from more: the
        # sign and the direction of the study tell which is better.
        kappas = self.powers["kappa"].unique().sort().to_list()
        etas = [*self.powers["eta"].drop_nulls().unique().sort().to_list(), None]
        changes = self.powers.select("kappa", "eta", "change").rows()
        cells = {(kappa, eta): change for kappa, eta, change in changes}
        most = max([abs(change) for change in cells.values() if change is not None], default=0) or 1
        with figure_style():
            size = (len(etas) * _CELL[0] + 1, len(kappas) * _CELL[1] + 1)
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.subplots()
            values = [[cells.get((kappa, eta)) for eta in etas] for kappa in kappas]
            looks: dict[str, Any] = {"cmap": "PuOr_r", "vmin": -most, "vmax": most, "origin": "lower"}
            draw_cells(axes, values, percent, lambda x: abs(x) <= 0.65 * most, empty=INK, **looks)
            columns = ["EMA" if eta is None else f"{eta:g}" for eta in etas]
            axes.set_xticks(range(len(etas)), columns)
            axes.set_yticks(range(len(kappas)), [f"{kappa:g}" for kappa in kappas])
            axes.set(xlabel="BEMA power η", ylabel="EMA power κ")
            svg = to_svg(figure, f"figure{figures.own}")
        yield Picture(number=figures.own, caption=self.caption, svg=svg)
