"""The arms of an experiment, compared, for the sections that show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from search.analysis.arms.comparison import ArmComparison, compare_arms
from search.analysis.arms.experiment import ComparedTrials, choose_trials, learning_curves, score_arms
from spaces.settings import Direction


@dataclass(frozen=True, kw_only=True, eq=False)
class Experiment:
    """The arms of a study that is an experiment; computed when a section first asks for it."""

    arms: pl.DataFrame
    """One row for each trial (search.analysis.arms.experiment.read_arms)."""
    direction: Direction
    metric: str
    variant: str
    condition: str
    load_metrics: Callable[[], pl.DataFrame]
    baseline: str
    """The arm that the others are compared with."""

    @property
    def label(self) -> str:
        """The objective's metric without a condition."""
        return f"{self.metric}/{self.variant}"

    @cached_property
    def compared(self) -> ComparedTrials:
        """The trials that stand for the arms."""
        return choose_trials(self.arms, self.direction)

    @property
    def has_baseline(self) -> bool:
        """True if the baseline has a trial that others are compared with."""
        return self.baseline in self.compared.trials["arm"]

    @property
    def seeds(self) -> int:
        """Number of seeds that arms are compared by."""
        return self.compared.trials["seed"].n_unique()

    @cached_property
    def comparison(self) -> ArmComparison:
        """The arms against the baseline, under every condition of the objective's metric."""
        scores = score_arms(self.compared, self.load_metrics(), self.metric, self.variant, self.condition)
        return compare_arms(scores, self.baseline, self.direction, metric=self.metric)

    @cached_property
    def curves(self) -> pl.DataFrame:
        """Learning curves under the objective's condition."""
        return learning_curves(self.compared, self.load_metrics(), self.metric, self.variant, self.condition)
