"""The verdict of a comparison: better, worse, or not told apart."""

from __future__ import annotations

import polars as pl

SURE = 0.05
"""A difference with a lower adjusted p is told apart from none."""
BETTER, WORSE, UNDECIDED = "better", "worse", "not told apart"


def decide(q: pl.Expr, low: pl.Expr, high: pl.Expr, more_is_better: pl.Expr, level: float = SURE) -> pl.Expr:
    """Return BETTER or WORSE if q < `level` and 0 is outside; else UNDECIDED, or null without q."""
    rises, falls = low > 0, high < 0
    return (
        pl.when(q.is_null())
        .then(None)
        .when((q < level) & (rises | falls))
        .then(pl.when(rises == more_is_better).then(pl.lit(BETTER)).otherwise(pl.lit(WORSE)))
        .otherwise(pl.lit(UNDECIDED))
    )
