"""The scores of a study's metrics, as sections of its report ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from search.analysis.study.scores import Metric, Reserved, Summaries, list_metrics, order_metrics, score

_ROWS = 100_000
"""Scores that are computed at once, at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """A study's metrics as frames (search.analysis.study.scores.score), made when asked for."""

    summaries: Summaries
    objective: tuple[str, str]
    """The objective's metric and condition, without what a section reserves of it."""
    reserved: Sequence[Reserved] = ()
    """Metrics that a section keeps to itself."""

    @cached_property
    def unreserved(self) -> Sequence[Metric]:
        """The metrics that no section reserves."""
        return [metric for metric in self.summaries if not any(reserved.holds(metric) for reserved in self.reserved)]

    @cached_property
    def order(self) -> pl.DataFrame:
        """Metrics and variants in the order of tables (search.analysis.study.scores)."""
        measured = list_metrics({metric: self.summaries[metric] for metric in self.unreserved})
        return order_metrics(measured, *self.objective)

    def all(self) -> pl.DataFrame:
        """Return the scores of all metrics that no section reserves."""
        return self._score(self.unreserved)

    def in_parts(self) -> Iterator[pl.DataFrame]:
        """Yield the scores of `all` in at least one frame, with categories for texts.

        A frame has at most _ROWS scores, or one metric: a large study takes a fraction of the room,
        and a small one a single query, which takes milliseconds however few rows it has.
        """
        parts: list[list[Metric]] = [[]]
        rows = 0
        for metric in self.unreserved:
            rows += self.summaries[metric].height
            if parts[-1] and rows > _ROWS:
                parts.append([])
                rows = self.summaries[metric].height
            parts[-1].append(metric)
        for metrics in parts:
            yield self._score(metrics, pl.Categorical())

    def of(self, name: str, conditions: str = "") -> pl.DataFrame:
        """Return the unreserved scores of a metric whose conditions match a regular expression."""
        known = self.unreserved
        return self._score(metric for metric in known if metric[0] == name and re.search(conditions, metric[1]))

    def of_name(self, name: str, conditions: str = "") -> pl.DataFrame:
        """Return the scores of `of` and those that a section reserves, for sections with both."""
        known = self.summaries
        return self._score(metric for metric in known if metric[0] == name and re.search(conditions, metric[1]))

    def of_objective(self) -> pl.DataFrame:
        """Return the objective's scores, in all variants, with categories for texts."""
        metrics = (metric for metric in self.unreserved if metric[:2] == self.objective)
        return self._score(metrics, pl.Categorical())

    def of_reserved(self, reserved: Reserved) -> pl.DataFrame:
        """Return the scores of the metrics that this section reserves, and no other one does."""
        others = [other for other in self.reserved if other is not reserved]
        metrics = (metric for metric in self.summaries if reserved.holds(metric))
        return self._score(metric for metric in metrics if not any(other.holds(metric) for other in others))

    def _score(self, metrics: Iterable[Metric], text: pl.DataType = pl.String()) -> pl.DataFrame:
        return score({metric: self.summaries[metric] for metric in metrics}, text)
