"""Aggregates over runs and tasks that a few outliers do not decide.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (the definitions of
rliable 1.2.0). Scores of several tasks must be on one scale; a list has one array a task, each of its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Scores = Sequence[Numbers]
"""The scores of an arm's runs, one array a task."""

FEWEST_TASKS = FEWEST_RUNS = 5
"""Tasks, and runs on each, from which on a stratified interval covers what it says."""


def interquartile_mean(scores: Scores) -> Numbers:
    """The mean of the middle half of all runs ([..., runs] a task) on all tasks: [...]; NaN without a run."""
    from scipy import stats  # 45 MB that most reports do not need

    every = np.concatenate(scores, axis=-1) if scores else np.empty(0)
    found: Any = stats.trim_mean(every, 0.25, axis=-1) if every.shape[-1] else nan
    return np.asarray(found)


def probability_of_improvement(costs: Scores, baseline: Scores) -> Numbers:
    """How probable it is that a run costs less than a run of the baseline on the same task, ties as one half.

    The mean over tasks ([..., runs] each) of Mann and Whitney's U / (runs x runs): [...]. Costs may be infinite: a run
    that diverged is worse than any that did not.
    """
    both = [(own, other) for own, other in zip(costs, baseline, strict=True) if own.shape[-1] and other.shape[-1]]
    return np.mean([_share_better(own, other) for own, other in both], axis=0) if both else np.asarray(nan)


def _spread(runs: Numbers) -> Numbers:
    """The runs with the variance that they estimate: that of a sample is too small by (n - 1) / n."""
    count = len(runs)
    return runs if count < 2 else runs.mean() + (runs - runs.mean()) * sqrt(count / (count - 1))


def _share_better(costs: Numbers, baseline: Numbers) -> Numbers:
    own, other = costs[..., :, None], baseline[..., None, :]
    return np.mean((own < other) + 0.5 * (own == other), axis=(-2, -1))


def stratified_interval(
    statistic: Callable[..., Numbers],
    *arms: Scores,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile bootstrap interval of `statistic(*arms)`; runs (finite) are drawn again within each task.

    For several runs on several tasks. What n runs are drawn from is spread by sqrt(n / (n - 1)) about their mean:
    without that an interval of five runs a task covers 91 % however many tasks there are, with it 93 to 95 % from
    FEWEST_TASKS and FEWEST_RUNS on (`python -m benchmarks.statistics`). Of fewer it covers less. Source: Agarwal et al.
    2021; for the spread Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 3.2.
    """
    random = np.random.default_rng(seed)
    drawn = [[random.choice(_spread(runs), (resamples, len(runs))) for runs in scores] for scores in arms]
    low, high = np.quantile(statistic(*drawn), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
