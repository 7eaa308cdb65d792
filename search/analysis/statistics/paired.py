"""Paired differences: two arms over the same seeds, and when their p may decide."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import nan, sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

Numbers = NDArray[np.float64]

EXACT_PAIRS = 16
"""Up to so many pairs, all 2^n sign patterns count (half are tried; the others mirror them)."""
FEWEST_OF_FLIPS = 6
"""Fewer pairs cannot give p < .05 in a sign-flip test, so equal differences have no interval."""
FEWEST_OF_VERDICT = 4
"""Fewer pairs give no verdict in a matrix; `search.analysis.arms.comparison.choose_p` may decide by
three, where the metric is continuous."""
_RESAMPLES = 9_999
EQUAL = 1e-4
"""Differences nearer to one another than this share of the largest are equal but for rounding: a
share of right answers is computed in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The mean of n paired differences and its tests. NaN if there are too few pairs."""

    pairs: int
    mean: float
    low: float
    """Lower end of the Student t interval of the mean.

    Of equal differences it is their value from FEWEST_OF_FLIPS pairs on, else NaN."""
    high: float
    p: float
    """Two-sided p of the paired t-test: exact for normal differences; NaN where all are equal."""
    p_sign_flip: float
    """Two-sided p of the sign-flip test, which assumes only that a difference is as likely as its
    negative. It is exact up to EXACT_PAIRS pairs, and by resampling beyond."""
    repeated: bool
    """True if at most half of the differences are distinct, so that they are not continuous."""

    @property
    def smallest_p(self) -> float:
        """The smallest p that an exact sign-flip test of so many pairs can have: 2 / 2^n.

        Beyond EXACT_PAIRS it is resampled, and no less than 1 / 10,000.
        """
        return 2.0 ** (1 - self.pairs) if self.pairs else nan

    @property
    def decisive_p(self) -> float:
        """The p of the t-test, or where differences are `repeated` the larger of both tests'.

        The column `decisive_p` of arms also looks at the other arms
        (`search.analysis.arms.comparison.choose_p`). The t-test assumes normal differences. Accuracies
        move in steps such as 1/16: where all differences are one step the deviation is 0, and where
        only a few are not the t-test's p is far too small.
        """
        return float(np.fmax(self.p, self.p_sign_flip)) if self.repeated else self.p


def summarize_differences(differences: Numbers, confidence: float = 0.95) -> PairedDifference:
    """Return mean, interval and tests of `differences` ([pairs], finite).

    Sources: Student 1908; Fisher, "The Design of Experiments", section 21 (sign flips).
    """
    pairs = len(differences)
    mean = float(differences.mean()) if pairs else nan
    low = high = p = nan
    largest = float(np.abs(differences).max()) if pairs else 0.0
    gaps = np.diff(np.sort(differences))
    is_equal = pairs > 1 and gaps.sum() <= EQUAL * largest
    if is_equal and pairs >= FEWEST_OF_FLIPS:
        low = high = mean
    elif pairs > 1 and not is_equal:
        low, high = mean_interval(differences, confidence)
        error = float(differences.std(ddof=1)) / sqrt(pairs)
        p = 2 * float(stdtr(pairs - 1, -abs(mean) / error))
    return PairedDifference(
        pairs=pairs,
        mean=mean,
        low=low,
        high=high,
        p=p,
        p_sign_flip=_flip_signs(differences) if pairs else nan,
        repeated=pairs > 1 and 2 * (1 + int((gaps > EQUAL * largest).sum())) <= pairs,
    )


def decisive_p(cells: pl.DataFrame) -> Numbers:
    """Return PairedDifference.decisive_p of each row's list `changes`; NaN for too few."""
    p = np.full(cells.height, nan)
    for row, changes in enumerate(cells["changes"]):
        if len(changes) >= FEWEST_OF_VERDICT:
            p[row] = summarize_differences(changes.to_numpy()).decisive_p
    return p


def block_p(values: Numbers, arm: int) -> float:
    """Return the two-sided p of an arm's mean difference from arm 0, by the spread of all arms.

    `values` is [arms, seeds], finite, two of each at least. The spread is that of a randomised
    block design without the means of arms and of seeds: (arms - 1)(seeds - 1) degrees of freedom.
    It notices what the three differences of three seeds cannot tell: that some seeds of an arm solve
    the task and others do not, so that arms are far apart by luck. Source: Fisher, "The Design of
    Experiments", chapter IV.
    """
    arms, seeds = values.shape
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    freedom = (arms - 1) * (seeds - 1)
    error = sqrt(2 * float((rest**2).sum()) / freedom / seeds)
    difference = abs(float(values[arm].mean() - values[0].mean()))
    return 2 * float(stdtr(freedom, -difference / error)) if error else nan


@cache
def _patterns(pairs: int) -> Numbers:
    """Return the patterns of signs that end in plus, [2^(pairs - 1), pairs]; others mirror them."""
    return 1.0 - 2.0 * (np.arange(2 ** (pairs - 1))[:, None] >> np.arange(pairs) & 1)


def _flip_signs(differences: Numbers) -> float:
    """Return the share of sign patterns whose mean is at least as far from 0 as the given one.

    Beyond EXACT_PAIRS pairs it is estimated.
    """
    pairs = len(differences)
    # Less by a little, for patterns that are equal but for rounding.
    reached = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()
    if pairs <= EXACT_PAIRS:
        return float(np.mean(np.abs(_patterns(pairs) @ differences) >= reached))
    random = np.random.default_rng(0)
    # In nine parts: all patterns of ten thousand pairs at once would take a gigabyte.
    sums = [random.choice((-1.0, 1.0), (_RESAMPLES // 9, pairs)) @ differences for _ in range(9)]
    return float(1 + np.sum(np.abs(sums) >= reached)) / (1 + _RESAMPLES)


def mean_interval(values: Numbers, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Student t interval of the mean of finite `values`, [n]; NaN for fewer than two."""
    if len(values) < 2:
        return nan, nan
    mean, error = float(values.mean()), float(values.std(ddof=1)) / sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return mean - reach, mean + reach
