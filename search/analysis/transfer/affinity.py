"""Best sources of targets, general sources, and similar ones, by a compatibility matrix."""

from __future__ import annotations

from math import nan
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from search.analysis.statistics.aggregates import (
    FEWEST_RUNS,
    FEWEST_TASKS,
    interquartile_interval,
    interquartile_mean,
    probability_of_improvement,
)
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import FEWEST_OF_VERDICT, summarize_differences
from search.analysis.statistics.verdicts import BETTER, SURE, UNDECIDED, WORSE
from search.analysis.transfer.compatibility_matrix import GAIN, Matrix
from spaces.settings import sign_of

Axis = Literal["source", "target"]
Numbers = NDArray[np.float64]

FEWEST = 5
"""The fewest cells that two rows are compared over; with fewer, r's interval is nearly [-1, 1]."""
_DEVIATIONS = 1.959963984540054
"""Standard deviations around the mean that hold 95 % of a normal variable."""


def best_sources(matrix: Matrix) -> pl.DataFrame:
    """Return target, unit, best, leading, mean, low, high, own, others, own_against_rest.

    A row per target with a result. `leading` is the source with the best mean (`mean`, `low`,
    `high`), the target's own one if several are as good; `best` is the same if its verdict is
    BETTER, else null. `own` is the mean of the target's own source, the matrix's diagonal; `others`
    is the mean over all others. `own_against_rest` has paired t-tests over seeds of the own source
    against each other one, with Holm's correction over all targets: BETTER than every other that
    was tried, WORSE than one, or UNDECIDED; null if no other source has four pairs with it.
    """
    is_own, known = pl.col("source") == pl.col("target"), matrix.cells.drop_nulls("mean")
    leading = known.sort(GAIN, is_own, descending=True, maintain_order=True)
    leading = leading.group_by("target", maintain_order=True)
    rows = leading.agg(
        pl.col("unit", "mean", "low", "high").first(),
        leading=pl.col("source").first(),
        best=pl.when(pl.col("verdict").first() == BETTER).then(pl.col("source").first()),
        own=pl.col("mean").filter(is_own).first(),
        others=pl.col("mean").filter(~is_own).mean(),
    )
    ranks = pl.col("target").replace_strict(list(matrix.targets), range(len(matrix.targets)))
    columns = ("target", "unit", "best", "leading", "mean", "low", "high", "own", "others")
    joined = rows.join(_own_against_rest(matrix), on="target", how="left")
    return joined.select(*columns, "own_against_rest").sort(ranks)


def _own_against_rest(matrix: Matrix) -> pl.DataFrame:
    """Return target and own_against_rest."""
    sign = pl.when(pl.col("direction") == "maximize").then(1).otherwise(-1)
    signs = matrix.cells.select("target", sign=sign).unique()
    # From the values, not from the changes: equal values are a tie, to the last digit.
    gain = pl.when(pl.col("change").is_not_null()).then(pl.col("sign") * pl.col("value"))
    pairs = matrix.pairs.join(signs, on="target").with_columns(gain=gain)
    diagonal = pairs.filter(pl.col("source") == pl.col("target")).select("target", "seed", own="gain")
    others = pairs.filter(pl.col("source") != pl.col("target")).join(diagonal, on=["target", "seed"], how="left")
    rows: list[dict[str, str | float]] = []
    others = others.sort("target", "source", "seed")
    for (target, source), both in others.group_by("target", "source", maintain_order=True):
        difference = summarize_differences((both["own"] - both["gain"]).drop_nulls().to_numpy())
        p = difference.decisive_p if difference.pairs >= FEWEST_OF_VERDICT else nan
        rows.append({"target": str(target), "source": str(source), "mean": difference.mean, "p": p})
    schema = {"target": pl.String, "source": pl.String, "mean": pl.Float64, "p": pl.Float64}
    tested = pl.DataFrame(rows, schema=schema)
    sure = pl.Series(adjust_p(tested["p"].to_numpy())) < SURE  # NaN is not
    better, worse = pl.col("sure") & (pl.col("mean") > 0), pl.col("sure") & (pl.col("mean") < 0)
    verdict = (
        pl.when(better.all()).then(pl.lit(BETTER)).when(worse.any()).then(pl.lit(WORSE)).otherwise(pl.lit(UNDECIDED))
    )
    is_tested = pl.col("p").is_not_nan().any()
    return tested.with_columns(sure=sure).group_by("target").agg(own_against_rest=pl.when(is_tested).then(verdict))


def generality(matrix: Matrix) -> pl.DataFrame:
    """Return source, unit, targets, better, worse, mean, elsewhere, middle, its ends, improvement.

    A row per source and unit. targets have a result, and a verdict BETTER or WORSE on some; mean is
    over the row, elsewhere without the source's own task; middle is the interquartile mean of the
    changes of all pairs on all targets, middle_low and middle_high its 95 % interval, with the
    variance within targets, null for fewer than FEWEST_TASKS targets or FEWEST_RUNS pairs on one;
    improvement is the probability that a trial of the source is better than one of the baseline on
    the same target, the mean over targets.
    """
    known = matrix.cells.drop_nulls("mean")
    middle_rows = pl.DataFrame(
        [
            {"source": source, "unit": unit, **_describe_row(matrix, cells)}
            for (source, unit), cells in known.group_by("source", "unit", maintain_order=True)
        ],
        schema=_MIDDLES,
    )
    return (
        known.group_by("source", "unit", maintain_order=True)
        .agg(
            targets=pl.len().cast(pl.Int64),
            better=(pl.col("verdict") == BETTER).sum().cast(pl.Int64),
            worse=(pl.col("verdict") == WORSE).sum().cast(pl.Int64),
            mean=pl.col("mean").mean(),
            elsewhere=pl.col("mean").filter(pl.col("source") != pl.col("target")).mean(),
        )
        .join(middle_rows, on=["source", "unit"], how="left", maintain_order="left")
    )


_MIDDLES = {"source": pl.String(), "unit": pl.String()} | dict.fromkeys(
    ("middle", "middle_low", "middle_high", "improvement"), pl.Float64()
)


def _describe_row(matrix: Matrix, cells: pl.DataFrame) -> dict[str, float | None]:
    """Return statistics over all pairs of these cells of one source."""
    joined = cells.select("source", "target", "direction").join(
        matrix.pairs.drop_nulls("change"), on=["source", "target"], maintain_order="left"
    )
    changes: list[Numbers] = []
    costs: list[Numbers] = []
    baseline: list[Numbers] = []
    for _, pairs in joined.group_by("target", maintain_order=True):
        sign = sign_of(pairs["direction"][0])
        changes.append(pairs["change"].to_numpy())
        costs.append(sign * pairs["value"].to_numpy())
        baseline.append(sign * pairs["against"].to_numpy())
    low, high = None, None
    if len(changes) >= FEWEST_TASKS and min(map(len, changes)) >= FEWEST_RUNS:
        low, high = interquartile_interval(changes)
    return {
        "middle": interquartile_mean(changes),
        "middle_low": low,
        "middle_high": high,
        "improvement": probability_of_improvement(costs, baseline),
    }


def similarity(matrix: Matrix, axis: Axis = "source") -> pl.DataFrame:
    """Return one, other, r, low, high, shared of every two rows (`source`) or columns (`target`).

    r is Pearson's over the `shared` cells that both have, null for fewer than FEWEST of them and if
    a row does not vary; low and high are the ends of its 95 % interval by Fisher's transformation,
    tanh(artanh r -+ 1.96 / sqrt(shared - 3)).
    """
    along = "target" if axis == "source" else "source"
    cells = matrix.cells.drop_nulls("mean").select(axis, along, GAIN)
    r = pl.corr("gain", "gain_other")
    correlations = (
        cells.join(cells, on=along, suffix="_other")
        .group_by(pl.col(axis).alias("one"), pl.col(f"{axis}_other").alias("other"))
        .agg(r=r, shared=pl.len().cast(pl.Int64))
    )
    enough = (pl.col("shared") >= FEWEST) & pl.col("r").is_finite()
    names = pl.DataFrame({"one": matrix.sources if axis == "source" else matrix.targets})
    every = names.join(names.rename({"one": "other"}), how="cross", maintain_order="left_right")
    return (
        every.join(correlations, on=["one", "other"], how="left", maintain_order="left")
        .with_columns(r=pl.when(enough).then("r"), shared=pl.col("shared").fill_null(0))
        .with_columns(**interval_of_correlation(pl.col("r"), pl.col("shared")))
        .select("one", "other", "r", "low", "high", "shared")
    )


def interval_of_correlation(r: pl.Expr, shared: pl.Expr) -> dict[str, pl.Expr]:
    """Return `low` and `high` of the 95 % interval of r over `shared` cells (Fisher)."""
    middle, reach = r.clip(-1, 1).arctanh(), _DEVIATIONS / (shared - 3).sqrt()
    return {"low": (middle - reach).tanh(), "high": (middle + reach).tanh()}


def by_similarity(matrix: Matrix) -> Matrix:
    """Return the matrix with similar rows side by side, and columns in the order of the rows.

    Columns of no row's name come last. The order is that of the leaves of an average-linkage tree
    over 1 - r, with neighbours as close as the tree allows (Bar-Joseph et al. 2001); an unknown r
    counts as 0.
    """
    rows = _leaves(similarity(matrix, "source"))
    named = [source for source in rows if source in matrix.targets]
    others = [target for target in _leaves(similarity(matrix, "target")) if target not in named]
    return matrix.reorder(rows, [*named, *others])


def _leaves(alike: pl.DataFrame) -> list[str]:
    names: list[str] = alike["one"].unique(maintain_order=True).to_list()
    if len(names) < 3:
        return names
    distance = 1 - alike["r"].fill_null(0).to_numpy().reshape(len(names), len(names))
    distance = np.clip((distance + distance.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), method="average", optimal_ordering=True)
    return [names[leaf] for leaf in leaves_list(tree).tolist()]
