"""Confidence intervals and tests of mean changes, one per cell of a matrix, from the changes of its pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval(ABC):
    """How the interval of a mean of paired changes is made."""

    confidence: float = 0.95
    """Share of intervals that hold the true mean, in (0, 1)."""

    @abstractmethod
    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        """Lower and upper ends, one per row; NaN for too few pairs, fewer than two at least.

        `cells` has pairs (how many), mean and deviation (sample standard deviation) of the changes, and the changes
        themselves as lists.
        """

    @abstractmethod
    def describe(self) -> str:
        """The interval's name in a sentence."""


@dataclass(frozen=True, kw_only=True)
class Student(Interval):
    """mean ± t(pairs − 1) · deviation / √pairs: exact for normal changes, and the usual choice for a few seeds."""

    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        pairs, mean = cells["pairs"].to_numpy(), cells["mean"].to_numpy()
        quantile: Any = stdtrit(pairs - 1, (1 + self.confidence) / 2)
        reach = quantile * cells["deviation"].fill_null(np.nan).to_numpy() / np.sqrt(pairs)
        return mean - reach, mean + reach

    def describe(self) -> str:
        return f"{100 * self.confidence:g} % t-intervals over pairs"


@dataclass(frozen=True, kw_only=True)
class Bootstrap(Interval):
    """Percentiles of the means of resampled pairs (Efron 1979), further out by what a few pairs leave unknown.

    At n pairs the percentile of a level is that of Phi(sqrt(n / (n - 1)) t), t Student's quantile of the level: plain
    percentiles of nominal 95 % cover 85 % at five pairs. There is no interval below FEWEST pairs, whose means do not
    reach far enough. Source: Hesterberg 2015, "What Teachers Should Know about the Bootstrap", expanded percentiles.
    The same seed gives the same intervals, and a cell's interval depends on its own changes alone.
    """

    FEWEST: ClassVar[int] = 6

    resamples: int = 10_000
    seed: int = 0

    def bounds(self, cells: pl.DataFrame) -> tuple[Numbers, Numbers]:
        found = np.full((2, cells.height), np.nan)
        pairs = cells["pairs"].to_numpy()
        for count in np.unique(pairs[pairs >= self.FEWEST]).tolist():
            rows = np.flatnonzero(pairs == count)
            changes = np.stack([cells["changes"][row].to_numpy() for row in rows.tolist()])  # [cells, pairs]
            changes.sort()  # whatever the order of the results, the same draws
            found[:, rows] = np.quantile(self._means(changes), self._levels(count), axis=0)
        return found[0], found[1]

    def describe(self) -> str:
        kind = f"{100 * self.confidence:g} % bootstrap intervals over pairs"
        return f"{kind} ({self.resamples:,} resamples; none of fewer than {self.FEWEST} pairs)"

    def _means(self, changes: Numbers) -> Numbers:
        """Means of resamples, [resamples, cells]; how often each pair is drawn is the same for all these cells."""
        count = changes.shape[1]
        random = np.random.default_rng([self.seed, count])
        drawn = random.multinomial(count, np.full(count, 1 / count), self.resamples)
        # A product for each cell: one of all cells would round by how many there are.
        return np.stack([drawn @ own / count for own in changes], axis=1)

    def _levels(self, count: int) -> tuple[float, float]:
        reach: Any = sqrt(count / (count - 1)) * stdtrit(count - 1, (1 + self.confidence) / 2)
        level = float(ndtr(reach))
        return 1 - level, level


def student_quantile(count: pl.Expr, confidence: float = 0.95) -> pl.Expr:
    """Half the width of the interval of a mean of `count` numbers, in standard errors; NaN for fewer than two."""

    def quantile(counts: pl.Series) -> pl.Series:
        found: Any = stdtrit(counts.cast(pl.Float64).to_numpy() - 1, (1 + confidence) / 2)
        return pl.Series(found, dtype=pl.Float64)

    return count.map_batches(quantile, return_dtype=pl.Float64, is_elementwise=True)


def paired_p(cells: pl.DataFrame) -> Numbers:
    """Two-sided p of the paired t-test, one per row; `cells` as for Interval. NaN for fewer than two pairs.

    Changes that are all 0 have p = 1, since they are no evidence of any.
    """
    error = pl.col("deviation") / pl.col("pairs").sqrt()
    statistic = cells.select((pl.col("mean") / error).abs()).to_series()
    some: Any = 2 * stdtr(cells["pairs"].to_numpy() - 1, -statistic.fill_null(np.nan).to_numpy())
    nothing = (cells["deviation"] == 0) & (cells["mean"] == 0)
    return np.where(nothing.fill_null(False).to_numpy(), 1.0, some)
