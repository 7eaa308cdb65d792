"""Paired differences: two arms over the same seeds."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Numbers = NDArray[np.float64]

EXACT_PAIRS = 16
"""Up to so many pairs, all 2^n sign patterns are tried."""
_RESAMPLES = 99_999
_EQUAL = 1e-12
"""Differences that spread by less than this share of themselves are one repeated value, but for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """What n paired differences say of their mean. NaN where there are too few pairs."""

    pairs: int
    mean: float
    low: float
    """Lower end of the Student t interval of the mean."""
    high: float
    p: float
    """Two-sided p of the paired t-test: exact for normal differences."""
    p_sign_flip: float
    """Two-sided p of the sign-flip test, which assumes only that a difference is as likely as its negative. It is
    exact up to EXACT_PAIRS pairs, and by resampling beyond."""

    @property
    def smallest_p(self) -> float:
        """The smallest p_sign_flip that so many pairs can have: 2 / 2^n."""
        return 2.0 ** (1 - self.pairs) if self.pairs else nan


def summarize_differences(differences: Numbers, confidence: float = 0.95) -> PairedDifference:
    """Mean, interval and tests of `differences` ([pairs], finite).

    Differences that are all 0 have p = 1, since they are evidence of nothing. Sources: Student 1908; Fisher, "The
    Design of Experiments", section 21 (sign flips).
    """
    from scipy import stats  # 45 MB that most reports do not need

    pairs = len(differences)
    mean = float(differences.mean()) if pairs else nan
    if pairs < 2:
        return PairedDifference(pairs=pairs, mean=mean, low=nan, high=nan, p=nan, p_sign_flip=1.0 if pairs else nan)
    if np.ptp(differences) <= _EQUAL * np.abs(differences).max():
        # The t statistic is infinite or undefined. One repeated value other than 0 is as certain as its sign flips.
        p = 1.0 if mean == 0 else 0.0
        return PairedDifference(
            pairs=pairs, mean=mean, low=mean, high=mean, p=p, p_sign_flip=1.0 if mean == 0 else 2.0 ** (1 - pairs)
        )
    found: Any = stats.ttest_1samp(differences, 0.0)
    interval = found.confidence_interval(confidence)
    return PairedDifference(
        pairs=pairs,
        mean=mean,
        low=float(interval.low),
        high=float(interval.high),
        p=float(found.pvalue),
        p_sign_flip=_flip_signs(differences),
    )


def _flip_signs(differences: Numbers) -> float:
    from scipy import stats  # 45 MB that most reports do not need

    found: Any = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT_PAIRS if len(differences) <= EXACT_PAIRS else _RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def mean_interval(values: Numbers, confidence: float = 0.95) -> tuple[float, float]:
    """The Student t interval of the mean of `values` ([n], finite); NaN for fewer than two."""
    if len(values) < 2:
        return nan, nan
    mean, error = float(values.mean()), float(values.std(ddof=1)) / sqrt(len(values))
    reach = float(stdtrit(len(values) - 1, (1 + confidence) / 2)) * error
    return mean - reach, mean + reach
