"""The Pareto front of a study with two objectives."""

from __future__ import annotations

import polars as pl


def pareto_front(trials: pl.DataFrame, maximize: tuple[bool, bool]) -> pl.DataFrame:
    """Return the rows that no other row dominates, by `objective`, best first, with equal points.

    A row dominates another if it is no worse in `objective` and `second_objective`, and better in
    one of them; a row without both is left out. `maximize`: whether large is good, for each.
    """
    first, second = (
        pl.col(name) * (-1 if large else 1)
        for name, large in zip(("objective", "second_objective"), maximize, strict=True)
    )
    losses = trials.drop_nulls(("objective", "second_objective"))
    losses = losses.with_columns(__first=first, __second=second)
    # The lowest second loss of a first loss counts, and has to fall as first losses rise.
    corners = losses.group_by("__first").agg(pl.col("__second").min()).sort("__first")
    before = pl.col("__second").cum_min().shift(1)
    corners = corners.filter(before.is_null() | (pl.col("__second") < before))
    front = losses.join(corners, on=["__first", "__second"], how="semi")
    return front.sort("__first", "number").drop("__first", "__second")
