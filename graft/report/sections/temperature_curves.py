"""Error over the temperature of attention under each shift (paper 004, Figures 1, 2 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import final

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from graft.report.rendering.document import Block, Table
from graft.report.rendering.drawing import INK, SOFT, Looks, arm_colour
from graft.report.rendering.formatting import MISSING, number
from graft.report.sections import PAIRED, FigureNumbers
from graft.report.sections._lines import Lines
from search.analysis.study.condition_lines import trace_lines
from search.analysis.study.temperatures import compare_temperatures
from spaces.records import TRAINED

Numbers = NDArray[np.float64]

_NUMBER = "temperature"
_ESTIMATED = "temperature=estimated"
_BAYES = "bayes_error"
_CLOSED = ("closed_form_error", "closed_form_optimum", "closed_form_temperature")
"""Error at temperature 1, the least error and its temperature, of linearised attention."""
_POINTS = 60
_FORM = arm_colour(2)


@final
class TemperatureCurves(Lines):
    """A panel for each shift: trained weights, closed form, estimated temperature and Bayes."""

    after = "boundary_values"
    subject = "trials"
    most = 12
    panels_are = "shifts; the table has all"
    label = "{metric}"
    caption = (
        "{metric} of one set of trained weights by the temperature of attention, under each shift: means over trials "
        "with Student's 95 % intervals. Dotted: the Bayes predictor on the same prompts."
    )
    notes = (f"The temperatures: {PAIRED}",)

    def read_lines(self) -> pl.DataFrame:
        """Return the metric over temperature (1 if unlabelled); empty if all are at 1."""
        if not any(f"{_NUMBER}=" in condition for _, condition, _ in self.data.scores.unreserved):
            return pl.DataFrame()
        scores = self.data.scores.of(self.data.metric)
        labelled = pl.col("condition").str.contains(r"\btemperature=")
        plain = pl.concat_str(pl.col("condition"), pl.lit(f" {_NUMBER}=1")).str.strip_chars_start()
        named = scores.with_columns(condition=pl.when(labelled).then("condition").otherwise(plain))
        series = scores.select("number", series=pl.lit("trained")).unique()
        lines = trace_lines(named, series).filter(pl.col("across") == _NUMBER)
        return lines.with_columns(title=pl.col("rest").replace("", "no shift"))

    @cached_property
    def closed(self) -> Mapping[str, Sequence[float]]:
        """Shift -> the numbers of _CLOSED, means over trials; empty for models of another form.

        Models of that form estimate their temperature, and have no scorer to be trained with.
        """
        scored = any(TRAINED in condition for _, condition, _ in self.data.scores.unreserved)
        if scored or not self.estimated:
            return {}
        means = [self._means(name) for name in _CLOSED]
        known = [rest for rest in means[0] if all(rest in by_shift for by_shift in means)]
        return {rest: [by_shift[rest] for by_shift in means] for rest in known}

    @cached_property
    def estimated(self) -> Mapping[str, float]:
        """Shift -> the error at the estimated temperature."""
        return self._means(self.data.metric, f"{_ESTIMATED}$")

    @cached_property
    def bayes(self) -> Mapping[str, float]:
        """Shift -> the error of the Bayes predictor."""
        return self._means(_BAYES)

    def _means(self, metric: str, conditions: str = "") -> dict[str, float]:
        """Return shift -> a metric's mean over trials, at no temperature but an estimated one."""
        rest = pl.col("condition").str.replace(_ESTIMATED, "", literal=True).str.strip_chars()
        scores = self.data.scores.of(metric, conditions).filter(pl.col("variant") == "raw")
        rows = scores.with_columns(rest=rest).filter(~pl.col("rest").str.contains(r"\btemperature="))
        mean = (pl.col("sign") * pl.col("last")).mean()
        return dict(rows.group_by("rest").agg(mean).drop_nulls().iter_rows())

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = self.caption
        if self.closed:
            caption += (
                " Dashed is the closed form for linearised attention (paper 004, theorems 4.6 and 4.7), with a dot at "
                "its optimum."
            )
        if self.estimated:
            caption += " Dash-dotted: the error at the temperature that is estimated from inputs alone."
        yield self.picture(figures.own, self.lines, caption, self.label)
        comparisons = compare_temperatures(self.data.scores.of(self.data.metric))
        rows = [
            [
                row["shift"] or "no shift",
                number(row["temperature"]),
                number(row["pairs"]),
                *map(number, (row["at_one"], row["value"], row["mean"])),
                MISSING if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}",
                *map(number, (row["p"], row["q"])),
            ]
            for row in comparisons.iter_rows(named=True)
        ]
        caption = f"{self.data.metric} at each temperature against that at 1, last validations, paired by trial"
        header = ["Shift", "Temperature", "Trials", "At 1", "There", "Change", "95 % interval", "p", "Adjusted p"]
        yield Table(caption=caption, header=header, rows=rows, folded=len(rows) > 24)

    def looks(self, lines: pl.DataFrame) -> Looks:
        return {"trained": {"color": arm_colour(1)}}

    def keys(self, looks: Looks) -> list[Line2D]:
        keys = super().keys(looks)
        if self.closed:
            keys.append(Line2D([], [], color=_FORM, linestyle="--", label="closed form"))
        if self.bayes:
            keys.append(Line2D([], [], color=INK, linestyle=":", label="Bayes"))
        if self.estimated:
            keys.append(Line2D([], [], color=SOFT, linestyle="-.", label="estimated"))
        return keys

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        super().draw(axes, lines, looks)
        rest, numbers = lines["rest"][0], lines["x"].to_list()
        if rest in self.closed:
            xs = np.linspace(min(numbers), max(numbers), _POINTS)
            error, least, optimum = self.closed[rest]
            axes.plot(xs, closed_form(xs, error, least, optimum), "--", color=_FORM, linewidth=1.4)
            axes.plot([optimum], [least], "o", color=_FORM, markersize=5)
        for levels, colour, style in ((self.bayes, INK, ":"), (self.estimated, SOFT, "-.")):
            if rest in levels:
                axes.axhline(levels[rest], color=colour, linestyle=style, linewidth=1.2)


def closed_form(temperatures: Numbers, error: float, least: float, optimum: float) -> Numbers:
    """Return the error at each temperature of a predictor: a mean plus covariances over it.

    It is a square in 1 / temperature, given by its value at 1, its least value and where that is;
    NaN where the optimum is 1, which leaves its width open.
    """
    if abs(optimum - 1) < 1e-3:
        return np.full(len(temperatures), np.nan)
    return least + (error - least) * ((1 - optimum / temperatures) / (1 - optimum)) ** 2
