"""Grids of averages from one training run (`averaging: bema_grid`): each pair of powers compared.

Such averages are metrics whose conditions end in their powers, `kappa=0.5 eta=0.3`; without eta it
is an EMA.
"""

from __future__ import annotations

import polars as pl

from search.analysis.study.top_k import RAW, mean_margin

CONDITIONS = r"^(?:(?P<rest>.*) )?kappa=(?P<kappa>[\d.]+)(?: eta=(?P<eta>[\d.]+))?$"


def compare_powers(scores: pl.DataFrame, plain: pl.DataFrame, name: str, condition: str) -> pl.DataFrame:
    """Return kappa, eta, trials, value, raw, change and margin of each pair of powers.

    `scores` are those of the grid, `plain` the others; both have number, name, condition, variant,
    sign and `last`, a cost, sign * metric. `condition` is without powers. value and raw are means
    of last validations, change is (value - raw) / |raw|, null if raw is zero, and margin is half
    its interval given raw's mean, null for fewer than five trials. All intervals of a grid hold
    together in 95 of 100 studies (Bonferroni), as the best of them is read.
    """
    is_asked = (pl.col("name") == name) & (pl.col("condition") == condition)
    plain_raw = plain.filter(is_asked, pl.col("variant") == RAW)
    raw = plain_raw.select("number", raw=pl.col("sign") * pl.col("last"))
    value, before = pl.col("value").mean(), pl.col("raw").mean()
    off = pl.when(before != 0).then(before.abs())
    known = split_powers(scores).filter(is_asked)
    confidence = 1 - 0.05 / max(known.select("kappa", "eta").n_unique(), 1)
    return (
        known.select("number", "kappa", "eta", value=pl.col("sign") * pl.col("last"))
        .join(raw, on="number")
        .drop_nulls(["value", "raw"])
        .with_columns(difference=pl.col("value") - pl.col("raw"))
        .group_by("kappa", "eta")
        .agg(
            trials=pl.len(),
            value=value,
            raw=before,
            change=(value - before) / off,
            margin=mean_margin("difference", confidence) / off,
        )
        .sort("kappa", "eta", nulls_last=True)
    )


def split_powers(scores: pl.DataFrame) -> pl.DataFrame:
    """Return scores of a grid with kappa and eta as columns, and a condition without them."""
    groups = pl.col("found").struct
    return (
        scores.with_columns(found=pl.col("condition").str.extract_groups(CONDITIONS))
        .with_columns(
            groups.field("rest").fill_null("").alias("condition"),
            *(groups.field(name).cast(pl.Float64) for name in ("kappa", "eta")),
        )
        .drop("found")
    )
