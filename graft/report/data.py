"""The data of a study's report: the study's frames, and the statistics that many sections share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from graft.report.experiment import Experiment
from graft.report.scores import Scores
from graft.stored.fingerprints import StoredFingerprint
from graft.stored.studies import TransferTask
from graft.stored.trials import pick_params
from search.analysis.arms.experiment import read_arms
from search.analysis.prior_use import PriorUse
from search.analysis.study.groups import group_statistics, list_groups
from search.analysis.study.scores import Reserved, Summaries, study_statistics, summarise
from spaces.settings import MetricName


@dataclass(frozen=True, kw_only=True, eq=False)
class StudyData:
    """A study. Each frame is read or computed once, when a section first asks for it.

    All frames but `trials` have only feasible trials with an objective, finished or pruned.
    """

    study: Mapping[str, Any]
    """Row of the table `studies`."""
    load_trials: Callable[[], pl.DataFrame]
    load_metrics: Callable[[], Iterable[pl.DataFrame]]
    """All metrics in batches, each of all metrics of some trials, in the order of steps."""
    load_step_counts: Callable[[], tuple[int, int]]
    load_params: Callable[[], Iterable[pl.DataFrame]] | None = None
    """number and params of all trials, in batches; if None, `load_trials` gives all of them."""
    load_conditions: Callable[[], Sequence[StoredFingerprint]] = lambda: ()
    load_transfer_tasks: Callable[[], Mapping[str, TransferTask]] = dict[str, TransferTask]
    load_seconds: Callable[[], pl.DataFrame] | None = None
    """number and seconds, from a trial's start to its end; None if they are not known."""
    load_prior: Callable[[], PriorUse | None] = lambda: None
    """The account of what the study's prior did; None for a study without a prior."""
    baseline: str | None = None
    """The arm that others are compared with; the first if None."""
    reserved: Sequence[Reserved] = ()
    """Metrics that a section keeps to itself."""

    @cached_property
    def trials(self) -> pl.DataFrame:
        """All trials, by number; columns `study._COLUMNS`, `params` and `config`.

        As JSON, `config` and `params` are most of a study: they are there for the first trial of
        each group that has a result, and `params` also for the best trials and in an experiment;
        elsewhere see `parameters`.
        """
        return self.load_trials()

    def parameters(self, pattern: str) -> pl.DataFrame:
        """Return number, and each of `params` whose path matches a pattern, null if missing."""
        batches = self.load_params() if self.load_params else [self.trials]
        return pick_params((batch.select("number", "params") for batch in batches), pattern)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """All metrics, as storage gives them, in the order of steps; gigabytes in a large study."""
        return pl.concat(list(self.load_metrics()))

    @cached_property
    def summaries(self) -> Summaries:
        """The metrics as `search.analysis.study.scores.summarise` reduces them."""
        return summarise(self.load_metrics(), self.ended, self.metric, self.study["direction"])

    @cached_property
    def step_counts(self) -> tuple[int, int]:
        """Model-steps, and how many there would be with no lane free (0 where unknown)."""
        return self.load_step_counts()

    @cached_property
    def conditions(self) -> Sequence[StoredFingerprint]:
        """The fingerprints of the trials, by number; no conditions of metrics."""
        return self.load_conditions()

    @cached_property
    def transfer_tasks(self) -> Mapping[str, TransferTask]:
        """Name -> task of a study that is a transfer, in their order; empty for any other study."""
        return self.load_transfer_tasks()

    @cached_property
    def prior(self) -> PriorUse | None:
        """The account of what its prior did, if it has one and a trial has a result."""
        return self.load_prior()

    @cached_property
    def ended(self) -> pl.DataFrame:
        """The feasible trials with an objective."""
        kept = self.trials.filter(pl.col("objective").is_not_null())
        if "feasible" in kept.columns:
            kept = kept.filter(pl.col("feasible").fill_null(value=True))
        return kept

    @property
    def metric(self) -> str:
        """The objective's metric."""
        return str(self.study["objective"]).split("/", 2)[0]

    @property
    def condition(self) -> str:
        """The objective's condition without what sections reserve of it; empty for validation."""
        _, *rest = str(self.study["objective"]).split("/", 2)
        condition = rest[1] if len(rest) > 1 else ""
        for reserved in self.reserved:
            condition = reserved.rest_of(condition)
        return condition

    @cached_property
    def experiment(self) -> Experiment | None:
        """The study's arms, if it is an experiment of which an arm has a result."""
        arms = read_arms(self.trials)
        if arms.is_empty():
            return None
        metric, variant, condition = MetricName.of(str(self.study["objective"]))
        experiment = Experiment(
            arms=arms,
            direction=self.study["direction"],
            metric=metric,
            variant=variant,
            condition=condition,
            load_metrics=lambda: self.metrics,
            baseline=self.baseline or arms["arm"][0],
        )
        return experiment if experiment.has_baseline else None

    def require_experiment(self) -> Experiment:
        """Return the experiment, for sections that apply to experiments alone."""
        assert self.experiment, "the section applies to an experiment"
        return self.experiment

    @cached_property
    def scores(self) -> Scores:
        """The metrics as sections show them."""
        objective = (self.metric, self.condition)
        return Scores(summaries=self.summaries, objective=objective, reserved=self.reserved)

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """The top-k statistics of all trials (search.analysis.study.scores.study_statistics)."""
        return study_statistics(self.scores.in_parts(), self.scores.order)

    @cached_property
    def groups(self) -> pl.DataFrame:
        """The groups of trials with their sizes (search.analysis.study.groups.list_groups)."""
        return list_groups(self.ended)

    @cached_property
    def group_statistics(self) -> pl.DataFrame:
        """The top-k statistics of each group (search.analysis.study.groups.group_statistics)."""
        return group_statistics(self.scores.in_parts(), self.groups, self.scores.order)
