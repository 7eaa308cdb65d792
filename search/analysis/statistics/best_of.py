"""The expected cost of the best of k tries: how much of a score is owed to the number of tries."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

Numbers = NDArray[np.float64]


def expected_best(costs: Numbers, counts: Sequence[int] | None = None) -> Numbers:
    """Return the expected least cost of k of the n `costs`, for each k of `counts`, or 1 ... n.

    Draws are without replacement. Unbiased for the best of k fresh tries: the mean over all C(n, k)
    subsets, where the i-th least of n is the least of a subset in C(n - i, k - 1) of them. Infinite
    costs are tries that diverged: a k at which all of a subset may have diverged has an infinite
    mean. Source: Tang et al. 2020, "Showing Your Work Doesn't Always Work", equation 5.
    """
    ordered, n = np.sort(costs), len(costs)
    means: list[float] = []
    rank = np.arange(1, n + 1)
    for k in range(1, n + 1) if counts is None else counts:
        taken = rank <= n - k + 1
        share = np.exp(_log_choose(n - rank[taken], k - 1) - _log_choose(n, k))
        means.append(float(share @ ordered[taken]))
    return np.array(means)


def mark_best_tenth(costs: Numbers) -> NDArray[np.bool_]:
    """Return True for the least tenth of the costs, rounded up; of equal ones the earlier count."""
    marks = np.zeros(len(costs), dtype=bool)
    marks[np.argsort(costs, kind="stable")[: math.ceil(len(costs) / 10)]] = True
    return marks


def _log_choose(n: NDArray[np.int64] | int, k: int) -> Numbers:
    return gammaln(np.add(n, 1)) - gammaln(k + 1) - gammaln(np.subtract(n, k) + 1)
