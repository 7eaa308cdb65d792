"""Error with and without the best temperature, and by lemma 4.1 (paper 004, Figures 1, 2, 4)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import polars as pl

from graft.report.rendering.document import Block
from graft.report.rendering.drawing import INK, Looks, arm_colour
from graft.report.sections import FigureNumbers
from graft.report.sections._lines import Lines, read_series
from spaces.records import TRAINED

_NUMBER = "temperature"
_BAYES = "Bayes"
_REFERENCES = {"bayes_error": _BAYES, "lemma_error": "lemma 4.1", "lemma_optimum_error": "lemma 4.1, best"}
_TEMPERATURES = {"closed_form_temperature": "closed form", "lemma_temperature": "lemma 4.1, best"}
_BEST = ", best"


@final
class OptimalTemperature(Lines):
    """Two figures over numbers of shifted prompts: the error, and the best temperature."""

    after = "answers"
    figures = 2
    most = 9
    panels_are = "numbers of the shift"
    label = "{metric}"
    caption = (
        "{metric} over a number of the shift, the others as the title has them, of one set of trained weights at "
        "temperature 1 and, dashed, at the best of a grid, chosen for each trial on these prompts; Bayes on the same "
        "prompts, and where the task has them the weights of lemma 4.1 with the temperature of theorem 4.7. Means over "
        "trials; bands are Student's 95 % intervals."
    )

    @cached_property
    def scores(self) -> pl.DataFrame:
        """The metric's number, condition (but temperature), variant, sign, last, temperature."""
        scores = self.data.scores.of(self.data.metric)
        stated = pl.col("condition").str.extract(rf"\b{_NUMBER}=(\S+)").fill_null("1")
        value = stated.cast(pl.Float64, strict=False)  # null where it is `estimated`
        plain = pl.col("condition").str.replace(rf"\s*\b{_NUMBER}=\S+", "").str.strip_chars_start()
        kept = scores.with_columns(temperature=value).drop_nulls("temperature")
        is_trained = pl.col("condition").str.contains(TRAINED, literal=True)
        return kept.filter(~is_trained, pl.col("variant") == "raw").with_columns(condition=plain)

    @cached_property
    def best(self) -> pl.DataFrame:
        """The row of `scores` at the best temperature, for each trial and condition."""
        costs = self.scores.drop_nulls("last").sort("last", maintain_order=True)
        return costs.unique(["number", "condition"], keep="first", maintain_order=True)

    def read_lines(self) -> pl.DataFrame:
        if not any(f"{_NUMBER}=" in condition for _, condition, _ in self.data.scores.unreserved):
            return pl.DataFrame()
        at_one = self.scores.filter(pl.col("temperature") == 1)
        return self._trace(_REFERENCES, {"": at_one, _BEST: self.best})

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        yield from super().blocks(figures)
        best = self.best.with_columns(sign=pl.lit(1), last=pl.col("temperature"))
        caption = (
            "The best temperature over the same numbers: of the grid, and by the closed forms of linearised attention "
            "(theorem 4.7)."
        )
        lines = self._trace(_TEMPERATURES, {_BEST: best})
        if lines.height:
            yield self.picture(figures.own + 1, lines, caption, "best temperature")

    def _trace(self, references: dict[str, str], of_arms: dict[str, pl.DataFrame]) -> pl.DataFrame:
        """Return the lines of arms, with endings of their names, and of `references`."""
        name = pl.when(pl.col("series") == "all").then(pl.lit("trained")).otherwise("series")
        arms = read_series(self.data).with_columns(series=name)
        parts = {
            ending: (scores, arms.with_columns(series=pl.col("series") + ending)) for ending, scores in of_arms.items()
        }
        for metric, label in references.items():
            changed = pl.col("condition").str.contains(rf"\b{_NUMBER}=|{TRAINED}")
            scores = self.data.scores.of(metric).filter(~changed)
            parts[label] = (scores, arms.with_columns(series=pl.lit(label)))
        title = pl.col("title").replace("", "else as in training")
        return self.trace(parts).with_columns(title=title)

    def looks(self, lines: pl.DataFrame) -> Looks:
        """Return looks of arms, then references; an arm and its best temperature share a colour."""
        references = {*_REFERENCES.values(), *_TEMPERATURES.values()}
        names = sorted(lines["series"].unique(), key=lambda name: (name in references, name.endswith(_BEST), name))
        families = list(dict.fromkeys(name.removesuffix(_BEST) for name in names))
        looks: dict[str, dict[str, Any]] = {}
        for name in names:
            family = name.removesuffix(_BEST)
            colour = INK if name == _BAYES else arm_colour(1 + families.index(family))
            dashes = "--" if family != name else ":" if name == _BAYES else "-"
            looks[name] = {"color": colour, "linestyle": dashes}
        return looks
