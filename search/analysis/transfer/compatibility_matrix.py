"""The compatibility matrix: the change by an architecture of one task on another task.

Legend: a *source* is the task that a model was found on (a row), a *target* the task that it is
trained on again (a column), a *pair* the results of a source and of the baseline on one target
with one seed. Source: paper 002, sections 3.2 and 4.2, Figures 5, 9 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.intervals import Interval, Student
from search.analysis.statistics.paired import decisive_p
from search.analysis.statistics.verdicts import decide
from spaces.errors import GraftError

BASELINE = "baseline"
"""The source of the models that all others are compared with."""

_IS_MAXIMIZED, _MEAN = pl.col("direction") == "maximize", pl.col("mean")
GAIN = pl.when(_IS_MAXIMIZED).then(_MEAN).otherwise(-_MEAN).alias("gain")
"""A cell's mean, turned so that more is better."""

_CELL = ("source", "target")


class TransferError(GraftError):
    """The results cannot be made into a matrix."""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Changes against the baseline, paired by seed."""

    baseline: str
    interval: Interval
    sources: tuple[str, ...]
    """Rows, in order."""
    targets: tuple[str, ...]
    """Columns, in order."""
    cells: pl.DataFrame
    """One row per source and target, in their order.

    source, target, direction, unit, mean, low, high, pairs, dropped, p, q, verdict. `unit` of mean,
    low and high, one per target: `points` (100 x the difference) for a maximised metric within
    [0, 1], `percent` of the baseline's |value| for a minimised one, else `difference`. `dropped`:
    seeds that gave no pair, as one side has no finite result; 0 if the source was not tried. `p`:
    two-sided (PairedDifference.decisive_p, without `block_p`); `q`: p adjusted over the cells by
    Benjamini and Hochberg. `verdict`: BETTER or WORSE than the baseline if q < SURE and the
    interval excludes 0, else UNDECIDED. Nulls: mean without a pair, low and high with fewer than
    two, p, q and verdict with fewer than four.
    """
    pairs: pl.DataFrame
    """source, target, seed, value, against (the baseline's value), change: one row per seed that a
    source was tried with, in this order; change is null without a pair."""

    def reorder(self, sources: Sequence[str], targets: Sequence[str]) -> Matrix:
        """Return the same matrix with its rows and columns in another order."""
        cells = _in_order(self.cells, sources, targets)
        return replace(self, sources=tuple(sources), targets=tuple(targets), cells=cells)


def compute_matrix(results: pl.DataFrame, baseline: str = BASELINE, interval: Interval | None = None) -> Matrix:
    """Return the matrix of stage-two results, rows and columns by name, with Student's intervals.

    `results` has source, target, seed, value and direction (`minimize` or `maximize`, one for each
    target). Several results of a source, target and seed count by their mean; values that are null
    or not finite do not count. Raises TransferError if there is no result of the baseline, none of
    anything else, or no pair.
    """
    interval = interval or Student()
    targets = _targets(results)
    # One row per seed that was tried, null if it has no result. Sums are taken in one order, as the
    # last digits depend on it, whatever that of the results and of polars' groups.
    value = pl.col("value")
    finite = results.with_columns(value=pl.when(value.is_finite()).then(value))
    scores = finite.group_by(*_CELL, "seed").agg(value.sort().mean()).sort(*_CELL, "seed")
    sources = _check_sources(scores, baseline)
    pairs = _pair(scores, targets, baseline)
    cells = _cells(pairs, scores, baseline)
    if not cells["pairs"].sum():
        raise TransferError(f"no seed has results of both {baseline!r}, the baseline, and another source on one target")
    every = pl.DataFrame({"source": sources}, schema={"source": pl.String})
    every = every.join(targets, how="cross")
    complete = every.join(_add_intervals(cells, interval), on=_CELL, how="left").with_columns(
        pl.col("pairs", "dropped").fill_null(0),
        verdict=decide(pl.col("q"), pl.col("low"), pl.col("high"), _IS_MAXIMIZED),
    )
    columns: list[str] = targets["target"].to_list()
    return Matrix(
        baseline=baseline,
        interval=interval,
        sources=tuple(sources),
        targets=tuple(columns),
        cells=_in_order(complete, sources, columns),
        pairs=pairs.select(*_CELL, "seed", "value", "against", "change"),
    )


def _targets(results: pl.DataFrame) -> pl.DataFrame:
    """Return target, direction, unit; raises TransferError for a target of two directions."""
    value, direction = pl.col("value").filter(pl.col("value").is_finite()), pl.col("direction")
    share = (pl.col("least") >= 0) & (pl.col("most") <= 1)
    targets = (
        results.lazy()
        .group_by("target", "direction")
        .agg(least=value.min(), most=value.max())
        .with_columns(
            unit=pl.when(direction == "minimize")
            .then(pl.lit("percent"))
            .otherwise(pl.when(share).then(pl.lit("points")).otherwise(pl.lit("difference")))
        )
        .select("target", "direction", "unit")
        .sort("target")
        .collect()
    )
    both = targets.filter(pl.col("target").is_duplicated())["target"]
    if len(both):
        raise TransferError(f"results on {both[0]!r} are both minimised and maximised; a target has one direction")
    return targets


def _check_sources(scores: pl.DataFrame, baseline: str) -> list[str]:
    """Return the sources but the baseline, by name."""
    sources: list[str] = scores["source"].unique().sort().to_list()
    if baseline not in sources:
        choices = ", ".join(sources) or "none"
        raise TransferError(f"no result has the source {baseline!r}, the baseline; the sources are {choices}")
    if len(sources) == 1:
        raise TransferError(f"all results have the source {baseline!r}, the baseline; there is nothing to compare")
    return [source for source in sources if source != baseline]


def _pair(scores: pl.DataFrame, targets: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Return each seed of each cell beside the baseline's; `met` is True if the baseline has it."""
    is_baseline, value, against = pl.col("source") == baseline, pl.col("value"), pl.col("against")
    known = scores.filter(is_baseline).select("target", "seed", against="value", met=pl.lit(True))
    difference, unit = value - against, pl.col("unit")
    change = (
        pl.when(unit == "points")
        .then(100 * difference)
        .when(unit == "percent")
        .then(100 * difference / against.abs())
        .otherwise(difference)
    )
    return (
        scores.lazy()
        .filter(~is_baseline)
        .join(known.lazy(), on=["target", "seed"], how="left")
        .join(targets.lazy(), on="target")
        .with_columns(change=pl.when(change.is_finite()).then(change))
        .sort(*_CELL, "seed")
        .collect()
    )


def _cells(pairs: pl.DataFrame, scores: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Return pairs, dropped, mean, deviation and changes of each cell that was tried."""
    change = pl.col("change")
    tried = scores.filter(pl.col("source") == baseline).group_by("target").agg(tried=pl.len())
    return (
        pairs.group_by(*_CELL, maintain_order=True)
        .agg(
            pairs=change.count().cast(pl.Int64),
            seeds=pl.len(),
            met=pl.col("met").sum(),
            mean=change.mean(),
            deviation=change.std(),
            changes=change.drop_nulls(),
        )
        .join(tried, on="target", how="left", maintain_order="left")
        .with_columns(
            dropped=(pl.col("seeds") + pl.col("tried").fill_null(0)).cast(pl.Int64)
            - pl.col("met").fill_null(0).cast(pl.Int64)
            - pl.col("pairs")
        )
    )


def _add_intervals(cells: pl.DataFrame, interval: Interval) -> pl.DataFrame:
    """Return the cells with the ends of their intervals and p values."""
    known = cells.filter(pl.col("pairs") > 0)
    low, high = interval.bounds(known)
    p = decisive_p(known)
    columns = {"low": low, "high": high, "p": p, "q": adjust_p(p, "bh")}
    series = (pl.Series(name, values).fill_nan(None) for name, values in columns.items())
    tested = known.with_columns(series)
    rows = pl.concat([tested, cells.filter(pl.col("pairs") == 0)], how="diagonal")
    return rows.select(*_CELL, "mean", "low", "high", "pairs", "dropped", "p", "q")


def _in_order(cells: pl.DataFrame, sources: Sequence[str], targets: Sequence[str]) -> pl.DataFrame:
    position = {
        name: pl.col(name).replace_strict(list(order), range(len(order)), return_dtype=pl.Int64)
        for name, order in (("source", sources), ("target", targets))
    }
    return cells.sort(position["source"], position["target"])
