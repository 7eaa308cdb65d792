"""Confidence intervals of the compatibility matrix's cells, of groups' means and of medians.

`paired` has those of two arms, and `mean_interval` of plain numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrik, ndtr, stdtrit

from search.analysis.metrics import UNBOUNDED, Range
from search.analysis.statistics.paired import EQUAL, FEWEST_OF_FLIPS

Numbers = NDArray[np.float64]

FEWEST_OF_MEDIAN = 6
"""The least and the most of fewer numbers hold the median in fewer than 95 of 100 cases."""


@dataclass(frozen=True, kw_only=True)
class Interval(ABC):
    """A method for the interval of a mean of paired changes."""

    confidence: float = 0.95
    """Share of intervals that hold the true mean, in (0, 1)."""

    @abstractmethod
    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        """Return lower and upper ends, one per row of `cells`; NaN for too few pairs.

        `cells` has pairs (their number), mean and deviation (sample standard deviation) of the
        changes, and the changes themselves as lists.
        """

    @abstractmethod
    def describe(self) -> str:
        """Return the interval's name in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Student(Interval):
    """mean ± t(pairs − 1) · deviation / √pairs: exact for normal changes, usual for few seeds.

    Fewer than two pairs are too few, and fewer than FEWEST_OF_FLIPS if all changes are equal, which
    have no deviation.
    """

    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        pairs, mean = cells["pairs"].to_numpy(), cells["mean"].to_numpy()
        deviation = cells["deviation"].fill_null(np.nan).to_numpy()
        unknown = (deviation <= EQUAL * np.abs(mean)) & (pairs < FEWEST_OF_FLIPS)
        quantile: Any = stdtrit(pairs - 1, (1 + self.confidence) / 2)
        reach = np.where(unknown, np.nan, quantile * deviation / np.sqrt(pairs))
        return mean - reach, mean + reach

    def describe(self) -> str:
        return f"{100 * self.confidence:g} % t-intervals over pairs"


@dataclass(frozen=True, kw_only=True)
class Bootstrap(Interval):
    """Percentiles of the means of resampled pairs (Efron 1979), expanded for few pairs.

    At n pairs the percentile of a level is that of Phi(sqrt(n / (n - 1)) t), with t Student's
    quantile of the level: plain percentiles of nominal 95 % cover 85 % at five pairs. There is no
    interval below FEWEST pairs, whose means do not reach far enough. The same seed gives the same
    intervals, and a cell's interval depends on its own changes alone. Source: Hesterberg 2015,
    "What Teachers Should Know about the Bootstrap", expanded percentiles.
    """

    FEWEST: ClassVar[int] = 6

    resamples: int = 10_000
    seed: int = 0

    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        ends = np.full((2, cells.height), np.nan)
        pairs = cells["pairs"].to_numpy()
        for count in np.unique(pairs[pairs >= self.FEWEST]).tolist():
            rows = np.flatnonzero(pairs == count)
            lists = [cells["changes"][row].to_numpy() for row in rows.tolist()]
            changes = np.stack(lists)  # [cells, pairs]
            changes.sort()  # whatever the order of the results, the same draws
            # How often each pair is drawn is the same for all these cells.
            random = np.random.default_rng([self.seed, count])
            drawn = random.multinomial(count, np.full(count, 1 / count), self.resamples)
            # A product for each cell: one of all cells would round by how many there are.
            means = np.stack([drawn @ cell / count for cell in changes], axis=1)  # [resamples, cells]
            reach: Any = sqrt(count / (count - 1)) * stdtrit(count - 1, (1 + self.confidence) / 2)
            level = float(ndtr(reach))
            ends[:, rows] = np.quantile(means, (1 - level, level), axis=0)
        return ends[0], ends[1]

    def describe(self) -> str:
        kind = f"{100 * self.confidence:g} % bootstrap intervals over pairs"
        return f"{kind} ({self.resamples:,} resamples; none of fewer than {self.FEWEST} pairs)"


def student_quantile(count: pl.Expr, confidence: float = 0.95) -> pl.Expr:
    """Return Student's quantile with count - 1 degrees of freedom; NaN for fewer than two.

    It is half the width of a mean's interval, in standard errors.
    """

    def quantile(counts: pl.Series) -> pl.Series:
        quantiles: Any = stdtrit(counts.cast(pl.Float64).to_numpy() - 1, (1 + confidence) / 2)
        return pl.Series(quantiles, dtype=pl.Float64)

    return count.map_batches(quantile, return_dtype=pl.Float64, is_elementwise=True)


def mean_with_interval(within: Range = UNBOUNDED) -> dict[str, pl.Expr]:
    """Return expressions for trials, mean, low and high of a group's column `value` (no nulls).

    low and high are the ends of Student's 95 % interval, cut at the range `within`; null for one
    number.
    """
    column = pl.col("value")
    reach = student_quantile(pl.len()) * column.std() / pl.len().sqrt()
    several = pl.len() > 1
    return {
        "trials": pl.len(),
        "mean": column.mean(),
        "low": pl.when(several).then((column.mean() - reach).clip(*within)),
        "high": pl.when(several).then((column.mean() + reach).clip(*within)),
    }


def median_depth(count: pl.Expr) -> pl.Expr:
    """Return how deep in `count` sorted numbers the 95 % interval of their median ends.

    It is d + share, share of the way from the d-th least (and most) to the next one inwards. Fewer numbers
    than FEWEST_OF_MEDIAN have no interval, and count as that many.

    The d-th least and most hold the median with probability 1 - 2 P(B < d), B binomial (count,
    1/2): at 8 numbers .992 or .930 and nothing between. Source: Hettmansperger and Sheather 1986,
    "Confidence Intervals Based on Interpolated Order Statistics", equation 4, which holds for
    densities of many shapes to within a percent.
    """

    def depth(counts: pl.Series) -> pl.Series:
        n = counts.clip(FEWEST_OF_MEDIAN).cast(pl.Int64).to_numpy()
        d: Any = np.ceil(bdtrik(0.025, n, 0.5))
        covers, next_covers = (1 - 2 * bdtr(fewer, n, 0.5) for fewer in (d - 1, d))
        excess = (covers - 0.95) / (covers - next_covers)
        return pl.Series(d + (n - d) * excess / (d + (n - 2 * d) * excess), dtype=pl.Float64)

    return count.map_batches(depth, return_dtype=pl.Float64, is_elementwise=True)
