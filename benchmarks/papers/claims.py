"""The plan's comparisons of arms as claims, decided by the kept trials as `search report claim` would.

They were written after these trials were trained: a verdict says what the rule makes of them, and no claim was locked
before. The smallest differences of interest are a tenth of the baseline's error, .05 of an accuracy,
and .5 of a perplexity.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from benchmarks.papers.plan import Plan, Row
from graft.report.claims import describe_result
from search.analysis.arms.claims import decide_claims
from spaces.experiment import Claim
from storage.claim_events import hash_claims


def describe_claims(plan: Plan, kept: pl.DataFrame) -> Iterator[str]:
    """Yield a line of a table for each claim of a study that was trained: its hash and its verdict."""
    yield "| study | SHA-256 of its claims | verdict on the kept trials |"
    yield "|---|---|---|"
    for study in plan.studies:
        rows = [row for row in plan.rows if row.study == study and row.difference]
        trials = kept.filter(pl.col("study") == study)
        if not rows or trials.is_empty():
            continue
        claims = [_make_claim(row, trials["seed"].n_unique()) for row in rows]
        digest = hash_claims([claim.to_json() for claim in claims])[:16]
        for result in decide_claims(claims, [_find_results(row, trials) for row in rows]):
            yield f"| {study} | `{digest}` | {describe_result(result)} |"


def _make_claim(row: Row, seeds: int) -> Claim:
    arms = (row.against, row.arm) if row.expected == "more" else (row.arm, row.against)
    return Claim(
        arm=arms[0],
        than=arms[1],
        direction="maximize" if "accuracy" in row.metric else "minimize",
        metric=f"{row.metric}/raw{f'/{row.condition}' if row.condition else ''}",
        at="last",
        difference=row.difference,
        seeds=seeds,
        fresh=False,
    )


def _find_results(row: Row, trials: pl.DataFrame) -> pl.DataFrame:
    """Return condition, arm, seed, state and value of the row's metric, as `decide_claims` takes them."""
    matches = trials.filter(pl.col("metric") == row.metric, pl.col("condition") == row.condition)
    return matches.select(pl.lit("").alias("condition"), "arm", "seed", "state", "value")
