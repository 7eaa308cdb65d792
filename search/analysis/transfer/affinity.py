"""What a compatibility matrix says: the best source of each target, how general sources are, which are alike."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from search.analysis.transfer.compatibility_matrix import GAIN, Matrix

Axis = Literal["source", "target"]

FEWEST = 3
"""Two rows are compared over this many cells at least: two points always lie on a line."""


def best_sources(matrix: Matrix) -> pl.DataFrame:
    """One row per target with a result: target, unit, best, mean, own, others, own_is_best.

    `best`: the source with the best mean (`mean`), the target's own one if several are as good. `own`: the mean of the
    target's own source, the matrix's diagonal; `others`: the mean over all others; null where there is none.
    `own_is_best`: whether the best one is the own one; null without an own one.
    """
    own, known = pl.col("source") == pl.col("target"), matrix.cells.filter(pl.col("mean").is_not_null())
    best = known.sort(GAIN, own, descending=True, maintain_order=True).group_by("target", maintain_order=True)
    return (
        best.agg(
            pl.col("unit", "mean").first(),
            best=pl.col("source").first(),
            own=pl.col("mean").filter(own).first(),
            others=pl.col("mean").filter(~own).mean(),
        )
        .with_columns(own_is_best=pl.when(pl.col("own").is_not_null()).then(pl.col("best") == pl.col("target")))
        .select("target", "unit", "best", "mean", "own", "others", "own_is_best")
        .sort(pl.col("target").replace_strict(list(matrix.targets), range(len(matrix.targets))))
    )


def generality(matrix: Matrix) -> pl.DataFrame:
    """One row per source and unit, in the order of the rows: source, unit, targets, better, mean, elsewhere.

    `targets`: how many have a result; `better`: on how many of these the source beats the baseline; `mean`: over the
    row; `elsewhere`: over the row but the source's own task.
    """
    known = matrix.cells.filter(pl.col("mean").is_not_null())
    return known.group_by("source", "unit", maintain_order=True).agg(
        targets=pl.len().cast(pl.Int64),
        better=(GAIN > 0).sum().cast(pl.Int64),
        mean=pl.col("mean").mean(),
        elsewhere=pl.col("mean").filter(pl.col("source") != pl.col("target")).mean(),
    )


def similarity(matrix: Matrix, axis: Axis = "source") -> pl.DataFrame:
    """Correlation (Pearson's r) of every two rows (`source`) or columns (`target`): one, other, r, shared.

    `shared`: the cells that both have. r is null for fewer than FEWEST of them, and where a row does not vary.
    """
    along = "target" if axis == "source" else "source"
    cells = matrix.cells.filter(pl.col("mean").is_not_null()).select(axis, along, GAIN)
    r = pl.corr("gain", "gain_other")
    found = (
        cells.join(cells, on=along, suffix="_other")
        .group_by(pl.col(axis).alias("one"), pl.col(f"{axis}_other").alias("other"))
        .agg(r=r, shared=pl.len().cast(pl.Int64))
    )
    enough = (pl.col("shared") >= FEWEST) & pl.col("r").is_finite()
    names = pl.DataFrame({"one": matrix.sources if axis == "source" else matrix.targets})
    every = names.join(names.rename({"one": "other"}), how="cross", maintain_order="left_right")
    return every.join(found, on=["one", "other"], how="left", maintain_order="left").with_columns(
        r=pl.when(enough).then("r"), shared=pl.col("shared").fill_null(0)
    )


def by_similarity(matrix: Matrix) -> Matrix:
    """The matrix with like rows side by side; columns follow the rows of their name, then come the other ones.

    The order of the leaves of an average-linkage tree over 1 - r, with neighbours as close as the tree allows
    (Bar-Joseph et al. 2001); an unknown r counts as 0.
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
