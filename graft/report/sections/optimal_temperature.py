"""Error with and without the best temperature, trained and by lemma 4.1 (paper 004, Figures 1, 2 and 4)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Literal, final

import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from graft.report.lines import draw_line, draw_panels, panels_of, read_series, scale_numbers
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import INK, arm_colour, fit_scale
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.study.condition_lines import NUMBER, longest_lines, trace_lines
from spaces.records import TRAINED

_NUMBER = "temperature"
_REFERENCES = {
    "bayes_error": "Bayes",
    "lemma_error": "lemma 4.1",
    "lemma_optimum_error": "lemma 4.1, best",
}
_TEMPERATURES = {"closed_form_temperature": "closed form", "lemma_temperature": "lemma 4.1, best"}
_BEST = ", best"
_MOST_PANELS = 9


@final
class OptimalTemperature(Section):
    """Two figures over lengths, spreads and noise of shifted prompts: the error, and which temperature is best."""

    part = Part.FIGURES
    order = 90
    figures = 2

    @cached_property
    def scores(self) -> pl.DataFrame:
        """number, condition (without its temperature), variant, sign, last, temperature: of the objective's metric."""
        found = self.data.scores.of(self.data.metric)
        numbered = found["condition"].map_elements(_temperature_of, return_dtype=pl.Float64, skip_nulls=False)
        plain = pl.col("condition").str.replace(rf"\s*\b{_NUMBER}=\S+", "").str.strip_chars_start()
        kept = found.with_columns(temperature=numbered).drop_nulls("temperature")
        kept = kept.filter(~pl.col("condition").str.contains(TRAINED, literal=True))
        return kept.with_columns(condition=plain).filter(pl.col("variant") == "raw")

    @cached_property
    def best(self) -> pl.DataFrame:
        """Of each trial and condition the row of `scores` at its best temperature."""
        costs = self.scores.drop_nulls("last").sort("last", maintain_order=True)
        return costs.unique(["number", "condition"], keep="first", maintain_order=True)

    @cached_property
    def errors(self) -> pl.DataFrame:
        """Lines (search.analysis.study.condition_lines): each arm at temperature 1 and at its best, and references."""
        arms = self._arms
        with_best = arms.with_columns(series=pl.col("series") + _BEST)
        parts = [(self.scores.filter(pl.col("temperature") == 1), arms), (self.best, with_best)]
        parts += [(self._plain(metric), self._named(name)) for metric, name in _REFERENCES.items()]
        return self._lines(parts)

    @cached_property
    def temperatures(self) -> pl.DataFrame:
        """Lines of the best temperature: of each arm the best of its grid, and what the closed forms say."""
        arms = self._arms
        grid = self.best.with_columns(sign=pl.lit(1), last=pl.col("temperature"))
        parts = [(grid, arms.with_columns(series=pl.col("series") + _BEST))]
        parts += [(self._plain(metric), self._named(name)) for metric, name in _TEMPERATURES.items()]
        return self._lines(parts)

    @property
    def _arms(self) -> pl.DataFrame:
        """The series of each trial, by number: of a study without arms `trained`."""
        named = pl.when(pl.col("series") == "all").then(pl.lit("trained")).otherwise("series")
        return read_series(self.data).with_columns(series=named)

    def _plain(self, metric: str) -> pl.DataFrame:
        """Return a reference, which no temperature changes."""
        found = self.data.scores.of(metric)
        return found.filter(~pl.col("condition").str.contains(rf"\b{_NUMBER}=|{TRAINED}"))

    def _named(self, name: str) -> pl.DataFrame:
        return read_series(self.data).with_columns(series=pl.lit(name))

    def _lines(self, parts: list[tuple[pl.DataFrame, pl.DataFrame]]) -> pl.DataFrame:
        traced = [trace_lines(scores, series) for scores, series in parts if not scores.is_empty()]
        return longest_lines(pl.concat(traced), self.data.condition, _MOST_PANELS) if traced else pl.DataFrame()

    @property
    def applies(self) -> bool:
        if not any(f"{_NUMBER}=" in condition for _, condition, _ in self.data.scores.unclaimed):
            return False
        return not self.errors.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        captions = (
            f"{self.data.metric} over a number of the shift, the others as the title has them, of one set of trained "
            "weights at temperature 1 and, dashed, at the best of a grid, chosen for each trial on these prompts; "
            "Bayes on the same prompts, and where the task has them the weights of lemma 4.1 with the temperature of "
            "theorem 4.7. Means over trials; bands are Student's 95 % intervals.",
            "The best temperature over the same numbers: of the grid, and by the closed forms of linearised attention "
            "(theorem 4.7).",
        )
        shown = ((self.errors, self.data.metric), (self.temperatures, "best temperature"))
        for place, (caption, (lines, upright)) in enumerate(zip(captions, shown, strict=True)):
            number = figures.own + place
            caption += say_shown(lines["panel"].n_unique(), lines["panels"][0], "numbers of the shift")
            yield Picture(number=number, caption=caption, svg=_draw_lines(lines, f"figure{number}", upright))


def _draw_lines(lines: pl.DataFrame, name: str, upright: str) -> str:
    """Return a panel for each number that lines go over."""
    order: list[str] = sorted(lines["series"].unique(), key=_place)
    keys = [Line2D([], [], color=_colour(one, order), linestyle=_style(one), label=one) for one in order]
    panels = [(title or "else as in training", own) for title, own in panels_of(lines)]
    return draw_panels(panels, lambda axes, own: _draw(axes, own, order), keys, name, upright)


def _temperature_of(condition: str) -> float | None:
    """Return the temperature that a condition names, 1 if it names none; None for one that is estimated."""
    named = [part for part in condition.split(" ") if part.startswith(f"{_NUMBER}=")]
    if not named:
        return 1.0
    found = NUMBER.fullmatch(named[0])
    return float(found[2]) if found else None


def _place(name: str) -> tuple[bool, bool, str]:
    """Arms before references, each before its best temperature."""
    return name in {*_REFERENCES.values(), *_TEMPERATURES.values()}, name.endswith(_BEST), name


def _style(name: str) -> Literal["-", "--", ":"]:
    return "--" if name.endswith(_BEST) else ":" if name == _REFERENCES["bayes_error"] else "-"


def _colour(name: str, order: list[str]) -> str:
    """Return an arm and its best temperature share a colour; Bayes is black."""
    if name == _REFERENCES["bayes_error"]:
        return INK
    families = list(dict.fromkeys(one.removesuffix(_BEST) for one in order))
    return arm_colour(1 + families.index(name.removesuffix(_BEST)))


def _draw(axes: Axes, frame: pl.DataFrame, order: list[str]) -> None:
    for (name,), own in frame.group_by("series", maintain_order=True):
        draw_line(axes, own, _colour(str(name), order), style=_style(str(name)))
    scale_numbers(axes, frame["x"].to_list())
    fit_scale(axes, frame["mean"].to_list())
    axes.set_xlabel(frame["across"][0])
