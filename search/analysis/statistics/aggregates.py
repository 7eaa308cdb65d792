"""Aggregates over runs and tasks that a few outliers do not decide.

Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice"
(the definitions of rliable 1.2.0). Scores of several tasks must be on one scale; a list has one
array a task, each of its own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Numbers = NDArray[np.float64]
Scores = Sequence[Numbers]
"""The scores of an arm's runs, one array a task."""

FEWEST_TASKS = FEWEST_RUNS = 5
"""With so many tasks and runs on each, the interval of an interquartile mean covers 95 %."""


def interquartile_mean(scores: Scores) -> float:
    """Return the mean of the middle half of all runs on all tasks; NaN without a run."""
    every = np.sort(np.concatenate(scores)) if scores else np.empty(0)
    cut = len(every) // 4
    return float(every[cut : len(every) - cut].mean()) if len(every) else nan


def probability_of_improvement(costs: Scores, baseline: Scores) -> float:
    """Return the probability that a run costs less than one of the baseline on the same task.

    A tie counts one half. The mean over tasks of Mann and Whitney's U / (runs x runs). Costs may be
    infinite: a run that diverged is worse than any that did not.
    """
    shares: list[float] = []
    for runs, other in zip(costs, baseline, strict=True):
        if len(runs) and len(other):
            known = np.sort(other[~np.isnan(other)])  # NaN is neither less nor more
            ahead, behind = (len(known) - np.searchsorted(known, runs, side) for side in ("left", "right"))
            shares.append(float((ahead + behind).sum() / 2 / (len(runs) * len(other))))
    return float(np.mean(shares)) if shares else nan


def interquartile_interval(scores: Scores, confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of the interquartile mean of several runs on each of several tasks.

    Runs are finite, two at least. The variance is that of the runs *within* their tasks, which are
    fixed, winsorized at the ends of the middle half; the degrees of freedom are the runs of the
    middle half less the tasks. From FEWEST_TASKS and FEWEST_RUNS on it holds the truth as often as
    it says (`python -m benchmarks.statistics`), where rliable's stratified bootstrap covers 91 %
    with five runs a task. Sources: Tukey and McLaughlin 1963, "Less Vulnerable Confidence and
    Significance Procedures for Location Based on a Single Sample"; for strata Cochran 1977,
    "Sampling Techniques", 5.4.
    """
    every = np.sort(np.concatenate(scores))
    cut = len(every) // 4
    middle = len(every) - 2 * cut
    winsorized = [np.clip(runs, every[cut], every[-cut - 1]) for runs in scores]
    variance = sum(len(runs) * runs.var(ddof=1) for runs in winsorized) / middle**2
    reach = float(stdtrit(middle - len(scores), (1 + confidence) / 2)) * sqrt(variance)
    mean = interquartile_mean(scores)
    return mean - reach, mean + reach
