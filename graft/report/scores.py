"""The scores of a study's metrics, as sections of its report ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from search.analysis.study.scores import Claim, Metric, Summaries, list_metrics, order_metrics, score

_ROWS = 100_000
"""Scores that are computed at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """What is kept of a study's metrics, as frames (search.analysis.study.scores.score), made when asked for."""

    summaries: Summaries
    objective: tuple[str, str]
    """The objective's metric and condition, without what a section claims of it."""
    claims: Sequence[Claim] = ()
    """Metrics that a section keeps to itself."""

    @cached_property
    def unclaimed(self) -> Sequence[Metric]:
        """The metrics that no section claims."""
        return [metric for metric in self.summaries if not any(claim.holds(metric) for claim in self.claims)]

    @cached_property
    def order(self) -> pl.DataFrame:
        """The order of metrics and variants in tables (search.analysis.study.scores.order_metrics)."""
        measured = list_metrics({metric: self.summaries[metric] for metric in self.unclaimed})
        return order_metrics(measured, *self.objective)

    def all(self) -> pl.DataFrame:
        """Return the scores of all metrics that no section claims."""
        return self._score(self.unclaimed)

    def in_parts(self) -> Iterator[pl.DataFrame]:
        """Yield the same, some metrics at a time with categories for texts; at least one frame.

        A frame has at most _ROWS scores, or one metric: a large study takes a fraction of the room, and a small one is
        computed at once, as a query takes milliseconds however few rows it has.
        """
        parts: list[list[Metric]] = [[]]
        rows = 0
        for metric in self.unclaimed:
            rows += self.summaries[metric].height
            if parts[-1] and rows > _ROWS:
                parts.append([])
                rows = self.summaries[metric].height
            parts[-1].append(metric)
        for metrics in parts:
            yield self._score(metrics, pl.Categorical())

    def of(self, name: str, conditions: str = "") -> pl.DataFrame:
        """Return the unclaimed scores of a metric whose conditions match a regular expression."""
        return self._score(
            metric for metric in self.unclaimed if metric[0] == name and re.search(conditions, metric[1])
        )

    def of_name(self, name: str, conditions: str = "") -> pl.DataFrame:
        """Return the same whether or not a section claims it, for sections that show what another one claims."""
        return self._score(
            metric for metric in self.summaries if metric[0] == name and re.search(conditions, metric[1])
        )

    def of_objective(self) -> pl.DataFrame:
        """Return the scores of the objective's metric and condition, all variants, with categories for texts."""
        return self._score((one for one in self.unclaimed if one[:2] == self.objective), pl.Categorical())

    def of_claim(self, claim: Claim) -> pl.DataFrame:
        """Return the scores of the metrics that this claim holds, and no other claim does."""
        others = [other for other in self.claims if other is not claim]
        return self._score(
            metric
            for metric in self.summaries
            if claim.holds(metric) and not any(other.holds(metric) for other in others)
        )

    def _score(self, metrics: Iterable[Metric], text: pl.DataType = pl.String()) -> pl.DataFrame:
        return score({metric: self.summaries[metric] for metric in metrics}, text)
