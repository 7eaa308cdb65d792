"""Two studies by their best trials: the top-k statistics of their objectives, and the difference with its interval."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from search.analysis.study.top_k import RAW, top_k_statistics


def compare_studies(objectives: Mapping[str, pl.DataFrame], *, maximize: bool) -> pl.DataFrame:
    """portion, and of each of two studies `trials`, `counted`, `value`, `margin`; `difference`, `difference_margin`.

    `objectives`: name -> number and objective of its trials; columns of the first study end in `_a`, of the second in
    `_b`, and the difference is b - a. Margins are halves of 95 % intervals, null where `top_k_statistics` gives none.
    That of a difference is the root of the sum of both margins' squares, for samples that are independent (Zou and
    Donner 2008, "Construction of confidence limits about effect measures", of symmetric margins).
    """
    sign = -1 if maximize else 1
    sides: list[pl.DataFrame] = []
    for suffix, frame in zip(("_a", "_b"), objectives.values(), strict=True):
        known = frame.drop_nulls("objective")
        scores = known.select("number", cost=sign * pl.col("objective"))
        scores = scores.with_columns(study=pl.lit(suffix), variant=pl.lit(RAW), sign=pl.lit(sign, pl.Int32()))
        found = top_k_statistics(scores, ["study"]).select("portion", "trials", "counted", "value", "margin")
        sides.append(found.rename(lambda name, suffix=suffix: name if name == "portion" else name + suffix))
    both = sides[0].join(sides[1], on="portion").sort("portion")
    return both.with_columns(
        difference=pl.col("value_b") - pl.col("value_a"),
        difference_margin=(pl.col("margin_a") ** 2 + pl.col("margin_b") ** 2).sqrt(),
    )
