"""Associations of trials' values with the objective: correlation ratios of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import atanh, isnan, sqrt, tanh
from typing import Any

import polars as pl
from scipy.optimize import brentq
from scipy.special import ncfdtr, ndtri

from search.analysis.study.value_groups import RANGES, assign_ranges, has_ranges

FEWEST = 10
"""Fewer trials say nothing about a value."""
_IN_RANGE = 5
"""The fewest trials of a range."""
_MOST = 0.9
"""Above this strength the inversion loses its digits, and Fisher's transformation is as good."""
_SCHEMA = {"value": pl.String, "trials": pl.Int64} | dict.fromkeys(("strength", "low", "high"), pl.Float64)


def rank_associations(trials: pl.DataFrame, columns: Sequence[str], confidence: float = 0.95) -> pl.DataFrame:
    """Return value, trials, strength, low and high of each value that differs, the strongest first.

    `trials` has `columns` and objective; for a value the trials count that have both, at least
    FEWEST. Trials of equal value are a group; numbers of more than twelve values make up to eight
    ranges of about as many trials, so that a best value in the middle is found as well as a trend.
    `strength`, 0 to 1, is the correlation ratio of the objective's ranks: the root of the share of
    their variance between the groups (Fisher 1925), corrected for chance (Kelley 1935). low and
    high invert the noncentral F distribution of the analysis of variance of these ranks (Conover
    and Iman 1981; Steiger 2004, "Beyond the F test"); low is 0 if the value may have no
    association. A value that groups the trials as an earlier column does has no row: an arm and a
    scorer that it alone has are one.
    """
    rows: list[Mapping[str, Any]] = []
    groupings: set[bytes] = set()
    for name in columns:
        known = trials.select(pl.row_index("row"), value=name, rank="objective").drop_nulls()
        known = known.with_columns(pl.col("rank").rank())
        count = known.height
        if count < FEWEST or known["value"].n_unique() < 2 or known["rank"].n_unique() < 2:
            continue
        groups = known["value"]
        if has_ranges(groups):
            groups = assign_ranges(groups, min(RANGES, count // _IN_RANGE))
        number = groups.n_unique()
        grouped = known.with_columns(group=groups)
        firsts = grouped.select("row", pl.col("row").min().over("group").alias("first"))
        grouping = firsts.to_numpy().tobytes()
        if not 1 < number < count or grouping in groupings:
            continue
        groupings.add(grouping)
        mean = pl.col("rank").mean()
        between = ((mean.over("group") - mean) ** 2).sum() / ((pl.col("rank") - mean) ** 2).sum()
        share = min(float(grouped.select(between).item()), 1 - 1e-12)
        free = number - 1, count - number
        ratio = share / free[0] / ((1 - share) / free[1])
        strength = sqrt(max(1 - (1 - share) * (count - 1) / free[1], 0.0))
        tails = (1 + confidence) / 2, (1 - confidence) / 2
        if strength <= _MOST:
            low, high = (_invert(free, count, ratio, tail) for tail in tails)
        else:
            low, high = (tanh(atanh(strength) - ndtri(tail) / sqrt(count - 3)) for tail in tails)
        strength = min(max(strength, low), high)
        rows.append({"value": name, "trials": count, "strength": strength, "low": low, "high": high})
    return pl.DataFrame(rows, _SCHEMA).sort("strength", descending=True, maintain_order=True)


def _invert(free: tuple[int, int], count: int, ratio: float, tail: float) -> float:
    """Return the strength at which `ratio` is the quantile `tail` of ratios of variances, or 0."""

    def excess(strength: float) -> float:
        below = float(ncfdtr(*free, count * strength**2 / (1 - strength**2), ratio))
        # SciPy has NaN where the probability vanishes: far above the strength that was seen.
        return (0.0 if isnan(below) else below) - tail

    if excess(0.0) <= 0:
        return 0.0
    root: Any = brentq(excess, 0.0, _MOST, xtol=1e-3) if excess(_MOST) < 0 else 1.0
    return float(root)
