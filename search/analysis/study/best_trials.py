"""Studies by their best trials: top-k statistics of their objectives, and their differences."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from search.analysis.study.top_k import RAW, top_k_statistics


def summarise_best(objectives: Mapping[str, pl.DataFrame], *, maximize: bool) -> pl.DataFrame:
    """Return portion, study, trials, counted, value, margin, difference and difference_margin.

    Rows are by portion. `objectives`: name of a study -> number and objective of its trials. A
    difference is a study minus the first one. Margins are halves of 95 % intervals, null where
    `top_k_statistics` gives none. That of a difference is the root of the sum of both margins'
    squares, for independent samples (Zou and Donner 2008, "Construction of confidence limits about
    effect measures", of symmetric margins).
    """
    sign = -1 if maximize else 1
    parts: list[pl.DataFrame] = []
    for index, (name, frame) in enumerate(objectives.items()):
        known = frame.drop_nulls("objective")
        scores = known.select(
            "number",
            cost=sign * pl.col("objective"),
            study=pl.lit(name),
            variant=pl.lit(RAW),
            sign=pl.lit(sign, pl.Int32()),
        )
        statistics = top_k_statistics(scores, ["study"])
        statistics = statistics.select("portion", "study", "trials", "counted", "value", "margin")
        parts.append(statistics.with_columns(place=pl.lit(index)))
    first = parts[0].select("portion", first="value", first_margin="margin")
    joined = pl.concat(parts).join(first, on="portion", how="left").sort("portion", "place")
    is_other, margins = pl.col("place") > 0, (pl.col("margin"), pl.col("first_margin"))
    return joined.with_columns(
        difference=pl.when(is_other).then(pl.col("value") - pl.col("first")),
        difference_margin=pl.when(is_other).then((margins[0] ** 2 + margins[1] ** 2).sqrt()),
    ).drop("place", "first", "first_margin")
