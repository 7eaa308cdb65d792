"""The power of the paired t-test: how probably seeds find a difference, and how many it needs.

Legend: *spread* is the standard deviation of the paired differences over seeds, which are assumed
normal. Source: Cohen, "Statistical Power Analysis for the Behavioral Sciences", chapter 2 (the
noncentral t distribution).
"""

from __future__ import annotations

from math import exp, isnan, lgamma, sqrt

from scipy.special import nctdtr, nctdtrinc, stdtrit

from search.analysis.statistics.paired import FEWEST_OF_VERDICT

WANTED_POWER = 0.8
"""Four times in five."""
_MOST = 1_000_000


def correct_spread(spread: float, freedom: int) -> float:
    """Return a spread of `freedom` degrees (1 or more), enlarged so that power is not overstated.

    Power follows from difference / spread, which is too large on average if the spread is of few
    seeds. Source: Hedges 1981, "Distribution Theory for Glass's Estimator of Effect Size", whose
    factor is exact.
    """
    if freedom < 2:  # one degree of freedom: the ratio has no mean
        return spread * sqrt(2)
    return spread / (exp(lgamma(freedom / 2) - lgamma((freedom - 1) / 2)) / sqrt(freedom / 2))


def find_power(seeds: int, spread: float, difference: float, level: float) -> float:
    """Return the probability that `seeds` (2 or more) find a true `difference` above 0.

    `level` is that of the two-sided test; a difference found on the other side does not count.
    """
    if not spread:
        return 1.0
    reach = stdtrit(seeds - 1, 1 - level / 2)
    below = float(nctdtr(seeds - 1, difference * sqrt(seeds) / spread, reach))
    # scipy has NaN around 38, where the truth is below 10^-190.
    return 1.0 if isnan(below) else 1 - below


def find_difference(seeds: int, spread: float, level: float) -> float:
    """Return the smallest true difference that `seeds` (2 or more) find with WANTED_POWER."""
    reach = stdtrit(seeds - 1, 1 - level / 2)
    return float(nctdtrinc(seeds - 1, 1 - WANTED_POWER, reach)) * spread / sqrt(seeds)


def count_seeds(spread: float, difference: float, level: float) -> int:
    """Return the fewest seeds, up to 10^6, that find a true `difference` with WANTED_POWER."""
    low, high = FEWEST_OF_VERDICT - 1, FEWEST_OF_VERDICT
    while high < _MOST and find_power(high, spread, difference, level) < WANTED_POWER:
        low, high = high, min(2 * high, _MOST)
    while high - low > 1:
        middle = (low + high) // 2
        if find_power(middle, spread, difference, level) < WANTED_POWER:
            low = middle
        else:
            high = middle
    return high
