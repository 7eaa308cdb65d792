"""The Pareto front of a study with two objectives."""

from __future__ import annotations

import polars as pl


def pareto_front(trials: pl.DataFrame, maximize: tuple[bool, bool]) -> pl.DataFrame:
    """Return the rows that no other row dominates, the best `objective` first; equal points are all there.

    One row dominates another if it is no worse in `objective` and `second_objective`, and better in one of them; a row
    without both is on no front. `maximize`: whether large is good, of each.
    """
    first, second = (
        pl.col(name) * (-1 if large else 1)
        for name, large in zip(("objective", "second_objective"), maximize, strict=True)
    )
    losses = trials.drop_nulls(("objective", "second_objective")).with_columns(__first=first, __second=second)
    # Of those with the same first loss the lowest second one counts; from low to high first losses it has to fall.
    corners = losses.group_by("__first").agg(pl.col("__second").min()).sort("__first")
    before = pl.col("__second").cum_min().shift(1)
    corners = corners.filter(before.is_null() | (pl.col("__second") < before))
    front = losses.join(corners, on=["__first", "__second"], how="semi")
    return front.sort("__first", "number").drop("__first", "__second")
