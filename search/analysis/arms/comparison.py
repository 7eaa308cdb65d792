"""The table of arms: one row an arm, each compared with the baseline over the same seeds.

Legend: an *arm* is one alternative of an experiment; its *cost* is its metric turned so that less
is better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from search.analysis.metrics import is_count, range_of, range_of_differences
from search.analysis.statistics.aggregates import interquartile_mean, probability_of_improvement
from search.analysis.statistics.corrections import Correction, adjust_p
from search.analysis.statistics.paired import (
    FEWEST_OF_VERDICT,
    PairedDifference,
    block_p,
    mean_interval,
    summarize_differences,
)
from search.analysis.statistics.verdicts import decide
from spaces.errors import GraftError
from spaces.settings import Direction, sign_of

Numbers = NDArray[np.float64]

_FEWEST_OF_CONTINUOUS = 3
"""Fewer pairs give no verdict on any metric."""
_MOST_OF_BLOCKS = 4
"""Up to this many pairs, the spread of all arms must give a low p besides their own."""
_COUNTED = ("finished", "diverged")
"""States that are results. A trial that failed or was stopped early says nothing about its arm."""


class ComparisonError(GraftError):
    """The results cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """Arms against a baseline, paired by seed, under one or several conditions."""

    baseline: str
    confidence: float
    correction: Correction
    table: pl.DataFrame
    """One row per condition and arm, the baseline first. Null: cannot be computed.

    condition, arm; finished, diverged, other: trials by state; mean, low, high: of the finished
    ones, with Student's interval within the metric's range; interquartile_mean, least, most; pairs,
    difference, difference_low, difference_high: arm minus baseline over the seeds that both
    finished, with Student's paired interval; wins, ties, losses: seeds, a diverged trial losing to
    a finished one; improvement: the probability that a trial of the arm is better than one of the
    baseline; p (paired t), p_sign_flip, smallest_p; decisive_p: the p that decides, null if so few
    seeds give no verdict; q: decisive_p adjusted over the table; verdict: `better`, `worse` or
    `not told apart`, null for the baseline and without decisive_p.
    """
    pairs: pl.DataFrame
    """condition, arm, seed, value, against, difference: a row per seed and arm; null: diverged."""


def compare_arms(
    results: pl.DataFrame,
    baseline: str,
    direction: Direction,
    *,
    metric: str = "",
    confidence: float = 0.95,
    correction: Correction = "holm",
) -> ArmComparison:
    """Compare the arms of `results` with `baseline`.

    `results` has condition, arm, seed, state and value (null or not finite if it diverged), one row
    per trial; `metric` is the name of the values' metric. A verdict is `better` or `worse` only if
    the interval excludes 0 and q is below 1 - confidence. With Holm's correction, a table without
    effects has such a verdict at most that often.

    Two pairs never decide. Three decide only on a continuous metric: its name declares no share of
    right answers (`is_count`) and no two values of a condition are equal. Up to four pairs need a
    low p by the spread of all arms, too (`block_p`). Repeated differences have the larger p of the
    t-test and the sign flips (`PairedDifference.decisive_p`). Raises ComparisonError if the
    baseline has no result, or a condition, arm and seed have two.
    """
    _check(results, baseline)
    known = results.with_columns(
        value=pl.when((pl.col("state") == "finished") & pl.col("value").is_finite()).then("value"),
        counted=pl.col("state").is_in(_COUNTED),
    )
    pairs = _pair(known, baseline)
    sign = sign_of(direction)
    paired = pairs.partition_by("condition", "arm", as_dict=True)
    rows: list[dict[str, Any]] = []
    for (condition,), group in known.partition_by("condition", as_dict=True, maintain_order=True).items():
        trials = group.partition_by("arm", as_dict=True, maintain_order=True)
        finite = {
            arm: dict(runs.drop_nulls("value").select("seed", "value").iter_rows()) for (arm,), runs in trials.items()
        }
        for arm in sorted(finite, key=lambda name: name != baseline):
            row = {"condition": condition, "arm": arm, **_describe(trials[arm,], metric, confidence)}
            if (both := paired.get((condition, arm))) is not None:
                difference = summarize_differences(both["difference"].drop_nulls().to_numpy(), confidence)
                row |= _compare(difference, both, sign, metric)
                row |= {"decisive_p": choose_p(difference, finite, (baseline, arm), metric)}
            rows.append(row)
    table = pl.DataFrame(rows, schema=_SCHEMA).with_columns(pl.selectors.float().fill_nan(None))
    p = table["decisive_p"].cast(pl.Float64).fill_null(nan).to_numpy()
    table = table.with_columns(q=pl.Series(adjust_p(p, correction), dtype=pl.Float64).fill_nan(None))
    return ArmComparison(
        baseline=baseline,
        confidence=confidence,
        correction=correction,
        table=table.with_columns(
            verdict=decide(
                pl.col("q"),
                pl.col("difference_low"),
                pl.col("difference_high"),
                pl.lit(direction == "maximize"),
                1 - confidence,
            )
        ),
        pairs=pairs,
    )


def _check(results: pl.DataFrame, baseline: str) -> None:
    arms = results["arm"].unique(maintain_order=True).to_list()
    if baseline not in arms:
        raise ComparisonError(
            f"baseline {baseline!r} is no arm with results; choose one of {', '.join(arms) or 'none'}"
        )
    twice = results.group_by("condition", "arm", "seed", maintain_order=True).len().filter(pl.col("len") > 1)
    if twice.height:
        _, arm, seed, count = twice.row(0)
        raise ComparisonError(f"arm {arm!r} has {count} results with seed {seed}; a seed has one result of each arm")


def _pair(known: pl.DataFrame, baseline: str) -> pl.DataFrame:
    """Return a row per condition, seed and arm but the baseline, if both sides have a result."""
    counted = known.filter("counted").select("condition", "arm", "seed", "value")
    against = counted.filter(pl.col("arm") == baseline).select("condition", "seed", against="value")
    others = counted.filter(pl.col("arm") != baseline)
    return others.join(against, on=["condition", "seed"], maintain_order="left").with_columns(
        difference=pl.col("value") - pl.col("against")
    )


def _describe(trials: pl.DataFrame, metric: str, confidence: float) -> dict[str, Any]:
    values = trials["value"].drop_nulls().to_numpy()
    diverged = int((trials["counted"] & trials["value"].is_null()).sum())
    low, high = np.clip(mean_interval(values, confidence), *range_of(metric))
    return {
        "finished": len(values),
        "diverged": diverged,
        "other": trials.height - len(values) - diverged,
        "mean": float(values.mean()) if len(values) else nan,
        "low": low,
        "high": high,
        "interquartile_mean": interquartile_mean([values]),
        "least": float(values.min()) if len(values) else nan,
        "most": float(values.max()) if len(values) else nan,
    }


def _compare(difference: PairedDifference, pairs: pl.DataFrame, sign: float, metric: str) -> dict[str, Any]:
    low, high = np.clip((difference.low, difference.high), *range_of_differences(metric))
    cost, against = _cost(pairs["value"], sign), _cost(pairs["against"], sign)
    return {
        "pairs": difference.pairs,
        "difference": difference.mean,
        "difference_low": low,
        "difference_high": high,
        "wins": int((cost < against).sum()),
        "ties": int((cost == against).sum()),
        "losses": int((cost > against).sum()),
        "improvement": probability_of_improvement([cost], [against]),
        "p": difference.p,
        "p_sign_flip": difference.p_sign_flip,
        "smallest_p": difference.smallest_p,
    }


def choose_p(
    difference: PairedDifference, values: Mapping[str, Mapping[int, float]], compared: tuple[str, str], metric: str
) -> float:
    """Return the p that decides on the `compared` baseline and arm; NaN if there are too few seeds.

    `values` are the finite ones of one condition: arm -> seed -> value.
    """
    every = [value for by_seed in values.values() for value in by_seed.values()]
    is_continuous = not is_count(metric) and len(set(every)) == len(every)
    if difference.pairs < (_FEWEST_OF_CONTINUOUS if is_continuous else FEWEST_OF_VERDICT):
        return nan
    if difference.pairs > _MOST_OF_BLOCKS:
        return difference.decisive_p
    both = sorted(values[compared[0]].keys() & values[compared[1]].keys())
    # Another arm that lost one of these seeds is left out of the spread.
    others = sorted(arm for arm, by_seed in values.items() if arm not in compared and by_seed.keys() >= set(both))
    block = np.array([[values[arm][seed] for seed in both] for arm in (*compared, *others)])
    return float(np.fmax(difference.decisive_p, block_p(block, 1)))


def _cost(values: pl.Series, sign: float) -> Numbers:
    """Return the costs, infinite for a trial that diverged."""
    return (sign * values).fill_null(np.inf).to_numpy()


_SCHEMA: dict[str, Any] = {
    **dict.fromkeys(("condition", "arm"), pl.String),
    **dict.fromkeys(("finished", "diverged", "other"), pl.Int64),
    **dict.fromkeys(("mean", "low", "high", "interquartile_mean", "least", "most"), pl.Float64),
    "pairs": pl.Int64,
    **dict.fromkeys(("difference", "difference_low", "difference_high"), pl.Float64),
    **dict.fromkeys(("wins", "ties", "losses"), pl.Int64),
    **dict.fromkeys(("improvement", "p", "p_sign_flip", "smallest_p", "decisive_p"), pl.Float64),
}
