"""Paired differences of an experiment's arms from the baseline, with intervals and seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import polars as pl
from matplotlib.figure import Figure

from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import INK, PANEL, SOFT, arm_colour, figure_style, to_svg
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.arms.comparison import ArmComparison

_MOST_PANELS = 12
_PANELS_PER_ROW = 3
_ROW = 0.32
"""Height of an arm's row, in inches."""


@final
class ArmDifferences(Section):
    """A panel for each condition, a line for each arm."""

    part = Part.FIGURES
    after = "averaging_grid"
    subject = "arms"
    figures = 1

    @property
    def applies(self) -> bool:
        table = self.data.require_experiment().comparison.table
        return table["difference"].null_count() < table.height

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        experiment = self.data.require_experiment()
        comparison = experiment.comparison
        every: list[str] = comparison.table["condition"].unique(maintain_order=True).to_list()
        conditions = every[:_MOST_PANELS]
        less = "less" if experiment.direction == "minimize" else "more"
        caption = (
            f"Differences of {experiment.label} from {comparison.baseline}, {less} is better: the mean over paired "
            "seeds with Student's 95 % interval, and each seed as a dot. An interval that holds 0 tells no difference."
        )
        caption += say_shown(len(conditions), len(every), "conditions; the table has all")
        svg = _draw(comparison, conditions, figures.own)
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _draw(comparison: ArmComparison, conditions: list[str], number: int) -> str:
    arms: list[str] = comparison.table["arm"].unique(maintain_order=True).to_list()
    arms.remove(comparison.baseline)
    with figure_style():
        columns, height = min(len(conditions), _PANELS_PER_ROW), 0.9 + _ROW * len(arms)
        rows = -(-len(conditions) // _PANELS_PER_ROW)
        figure = Figure(figsize=(PANEL[0] * columns, height * rows), layout="constrained")
        grid: Any = figure.subplots(rows, columns, squeeze=False, sharey=True)
        for axes in grid.flat[len(conditions) :]:
            axes.set_visible(False)
        for axes, condition in zip(grid.flat, conditions, strict=False):
            differences = comparison.table.filter(pl.col("condition") == condition)
            seeds = comparison.pairs.filter(pl.col("condition") == condition)
            for index, arm in enumerate(reversed(arms)):
                is_arm, colour = pl.col("arm") == arm, arm_colour(len(arms) - index)
                known = seeds.filter(is_arm)["difference"].drop_nulls().to_list()
                axes.plot(known, [index - 0.18] * len(known), ".", color=SOFT, markersize=4, alpha=0.7)
                for row in differences.filter(is_arm).drop_nulls("difference").iter_rows(named=True):
                    low, high = row["difference_low"], row["difference_high"]
                    if low is not None:
                        axes.plot([low, high], [index + 0.1] * 2, color=colour, linewidth=2)
                    axes.plot(row["difference"], index + 0.1, "o", color=colour, markersize=6)
            axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_title(condition or "validation")
            axes.set_ylim(-0.6, len(arms) - 0.4)
            axes.grid(visible=False, axis="y")
        grid[0, 0].set_yticks(range(len(arms)), labels=arms[::-1])
        return to_svg(figure, f"figure{number}")
