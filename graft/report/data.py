"""What the sections of a study's report ask for: the study's frames, and the scores and statistics that many share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from graft.report.experiment import Experiment
from graft.stored.fingerprints import Conditions
from graft.stored.trials import pick_params
from search.analysis.arms.experiment import read_arms
from search.analysis.study.groups import group_statistics, list_groups
from search.analysis.study.scores import (
    Claim,
    Metric,
    Summaries,
    list_metrics,
    order_metrics,
    score,
    study_statistics,
    summarise,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyData:
    """One study. What is read or computed is so when a section first asks for it, and once.

    Only finished and pruned trials count, those that have an objective, except in `trials`.
    """

    study: Mapping[str, Any]
    """Its row of the table `studies`."""
    load_trials: Callable[[], pl.DataFrame]
    load_metrics: Callable[[], Iterable[pl.DataFrame]]
    """All metrics, some at a time, each time all of some trials, in the order of steps."""
    load_lane_steps: Callable[[], tuple[int, int]]
    load_params: Callable[[], Iterable[pl.DataFrame]] | None = None
    """number and params of all trials, some at a time; None: `load_trials` gives all of them."""
    load_conditions: Callable[[], Sequence[Conditions]] = lambda: ()
    baseline: str | None = None
    """The arm that others are compared with; None: the first."""
    claims: Sequence[Claim] = ()
    """Metrics that a section keeps to itself."""

    @cached_property
    def trials(self) -> pl.DataFrame:
        """All trials, by number; columns `study._COLUMNS`, `params` and `config`.

        As JSON, `config` and `params` are most of a study: they are there for the first trial of each group that has a
        result, and `params` also for the best trials and in an experiment; elsewhere see `parameters`.
        """
        return self.load_trials()

    def parameters(self, pattern: str) -> pl.DataFrame:
        """number, and a column for each of the `params` whose path matches a regular expression, null where missing."""
        batches = self.load_params() if self.load_params else [self.trials]
        return pick_params((batch.select("number", "params") for batch in batches), pattern)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """All metrics, as storage gives them, in the order of steps: gigabytes, of a large study."""
        return pl.concat(list(self.load_metrics()))

    @cached_property
    def summaries(self) -> Summaries:
        """What is kept of the metrics (search.analysis.study.scores.summarise)."""
        return summarise(self.load_metrics(), self.ended, self.metric, self.study["direction"])

    @cached_property
    def lane_steps(self) -> tuple[int, int]:
        """Steps that lanes made, and what they would have been with no lane free; the second is 0 where unknown."""
        return self.load_lane_steps()

    @cached_property
    def conditions(self) -> Sequence[Conditions]:
        """Under which its trials were computed, by the number of their fingerprints."""
        return self.load_conditions()

    @cached_property
    def ended(self) -> pl.DataFrame:
        """The trials with an objective."""
        return self.trials.filter(pl.col("objective").is_not_null())

    @property
    def metric(self) -> str:
        """The objective's metric."""
        return str(self.study["objective"]).split("/", 2)[0]

    @property
    def condition(self) -> str:
        """The objective's condition, without what a section claims of it; empty for the validation set."""
        _, *rest = str(self.study["objective"]).split("/", 2)
        condition = rest[1] if len(rest) > 1 else ""
        for claim in self.claims:
            condition = claim.rest_of(condition)
        return condition

    @cached_property
    def experiment(self) -> Experiment | None:
        """The study's arms, if it is an experiment of which an arm has been judged."""
        arms = read_arms(self.trials)
        if arms.is_empty():
            return None
        metric, variant, *condition = str(self.study["objective"]).split("/", 2)
        experiment = Experiment(
            arms=arms,
            direction=self.study["direction"],
            metric=metric,
            variant=variant,
            condition=condition[0] if condition else "",
            load_metrics=lambda: self.metrics,
            baseline=self.baseline or arms["arm"][0],
        )
        return experiment if experiment.has_baseline else None

    def require_experiment(self) -> Experiment:
        """For sections that apply to experiments alone."""
        assert self.experiment, "the section applies to an experiment"
        return self.experiment

    def claimed(self, claim: Claim) -> pl.DataFrame:
        """The scores of the metrics that this claim holds, and no other one does."""
        others = [other for other in self.claims if other is not claim]
        return self._score(
            metric
            for metric in self.summaries
            if claim.holds(metric) and not any(other.holds(metric) for other in others)
        )

    @cached_property
    def unclaimed(self) -> Sequence[Metric]:
        """The metrics that no section claims."""
        return [metric for metric in self.summaries if not any(claim.holds(metric) for claim in self.claims)]

    def scores_of(self, name: str, conditions: str = "") -> pl.DataFrame:
        """The scores of a metric that no section claims, under the conditions that match a regular expression."""
        return self._score(
            metric for metric in self.unclaimed if metric[0] == name and re.search(conditions, metric[1])
        )

    @property
    def scores(self) -> pl.DataFrame:
        """The scores of all metrics that no section claims (search.analysis.study.scores.score); not kept."""
        return self._score(self.unclaimed)

    @property
    def separate_scores(self) -> Iterator[pl.DataFrame]:
        """The same, metric by metric with categories for texts, a fraction of the room; at least one frame."""
        for metrics in [[metric] for metric in self.unclaimed] or [[]]:
            yield self._score(metrics, pl.Categorical())

    def _score(self, metrics: Iterable[Metric], text: pl.DataType = pl.String()) -> pl.DataFrame:
        return score({metric: self.summaries[metric] for metric in metrics}, text)

    @property
    def objective_scores(self) -> pl.DataFrame:
        """The scores of the objective's metric and condition, all variants, with categories for texts."""
        own = (metric for metric in self.unclaimed if metric[:2] == (self.metric, self.condition))
        return self._score(own, pl.Categorical())

    @cached_property
    def order(self) -> pl.DataFrame:
        """The order of metrics and variants in tables (search.analysis.study.scores.order_metrics)."""
        measured = list_metrics({metric: self.summaries[metric] for metric in self.unclaimed})
        return order_metrics(measured, self.metric, self.condition)

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """The top-k statistics of all trials (search.analysis.study.scores.study_statistics)."""
        return study_statistics(self.separate_scores, self.order)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The groups of trials with their sizes (search.analysis.study.groups.list_groups)."""
        return list_groups(self.ended)

    @cached_property
    def group_statistics(self) -> pl.DataFrame:
        """The top-k statistics of each group (search.analysis.study.groups.group_statistics)."""
        return group_statistics(self.separate_scores, self.groups, self.order)
