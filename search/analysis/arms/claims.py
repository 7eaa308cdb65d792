"""Claims about two arms, decided: confirmed, refuted, or undecided, with the power of the seeds.

Legend: the *gain* of a seed is the difference of the two arms, positive where the arm that the
claim says is better is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import isnan, nan, sqrt
from typing import Literal

import numpy as np
import polars as pl

from search.analysis.arms.comparison import choose_p, compare_arms
from search.analysis.arms.experiment import ComparedTrials
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import FEWEST_OF_VERDICT, summarize_differences
from search.analysis.statistics.power import correct_spread, count_seeds, find_difference, find_power
from search.analysis.statistics.verdicts import SURE
from spaces.experiment import Claim
from spaces.records import TERMINAL
from spaces.settings import MetricName, sign_of

ClaimVerdict = Literal["confirmed", "refuted", "undecided"]


@dataclass(frozen=True, kw_only=True)
class ClaimResult:
    """A claim and its decision. Gains and their interval are NaN if too few seeds finished."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    ended: int
    """Seeds whose trials of both arms have ended, whatever their outcome."""
    pairs: int
    """Seeds that both arms finished."""
    diverged: tuple[int, int]
    """Trials of the two arms that diverged."""
    gain: float
    low: float
    high: float
    """Student's paired 95 % interval of the gain."""
    p: float
    """p of no gain, `decisive_p` of `ArmComparison.table`; NaN if so few seeds give no verdict."""
    q: float
    """p, corrected over the claims of the study."""
    p_refuted: float
    """The same p for a gain of the smallest difference of interest."""
    q_refuted: float
    spread: float
    """Standard deviation of the gains."""
    power: float
    """The probability that so many normal gains of this spread confirm the claim, if the true gain
    is the smallest difference of interest, or refute it, if there is none."""
    seeds_needed: int | None
    """Seeds that find the smallest difference of interest four times in five, with this spread."""


def score_claim(compared: ComparedTrials, metrics: pl.DataFrame, claim: Claim, objective: str) -> pl.DataFrame:
    """Return condition, arm, seed, state and value of the arms' trials, for `compare_arms`.

    The value is the trial's objective or, for a claim about another metric, its last value of that.
    `metrics` come in the order of steps. If fresh seeds decide, only confirmations count.
    """
    ready = [arm for arm, choice in compared.choices.items() if not claim.fresh or choice == "confirmed"]
    trials = compared.trials.filter(pl.col("arm").is_in(ready)).rename({"objective": "value"})
    if claim.metric != objective:
        wanted = MetricName.of(claim.metric)._asdict()
        last = metrics.filter(**wanted).group_by("number").agg(pl.col("value").last())
        trials = trials.drop("value").join(last, on="number", how="left", maintain_order="left")
    return trials.select(pl.lit("").alias("condition"), "arm", "seed", "state", "value")


@dataclass(frozen=True, kw_only=True)
class ClaimAdvice:
    """The differences that the seeds of a claim can find, by the spread of trials that exist."""

    claim: Claim
    spread: float
    """Standard deviation of the differences over seeds, corrected for few (`correct_spread`)."""
    freedom: int
    """Degrees of freedom of the spread: pairs of trials, less one for each of their studies."""
    detectable: float
    """The smallest difference that the claim's seeds find four times in five."""
    power: float
    """The probability that they find the claim's difference."""
    seeds_needed: int
    """Seeds that find the claim's difference four times in five."""


def advise_claim(claim: Claim, results: Sequence[pl.DataFrame], level: float = SURE) -> ClaimAdvice | None:
    """Return what a claim's seeds can find, by studies' results; None without three pairs."""
    squares, freedom = 0.0, 0
    for trials in results:
        finite = trials.filter(pl.col("state") == "finished", pl.col("value").is_finite())
        values, other = (finite.filter(pl.col("arm") == arm) for arm in (claim.arm, claim.than))
        pairs = values.select("seed", "value").join(other.select("seed", "value"), on="seed")
        differences = (pairs["value"] - pairs["value_right"]).to_numpy()
        if len(differences) >= _FEWEST_OF_SPREAD:
            squares += float(((differences - differences.mean()) ** 2).sum())
            freedom += len(differences) - 1
    if not freedom:
        return None
    spread = correct_spread(sqrt(squares / freedom), freedom)
    return ClaimAdvice(
        claim=claim,
        spread=spread,
        freedom=freedom,
        detectable=find_difference(claim.seeds, spread, level),
        power=find_power(claim.seeds, spread, claim.difference, level),
        seeds_needed=count_seeds(spread, claim.difference, level),
    )


_FEWEST_OF_SPREAD = 3
"""The spread of two differences says next to nothing."""


def decide_claims(claims: Sequence[Claim], results: Sequence[pl.DataFrame], level: float = SURE) -> list[ClaimResult]:
    """Decide the claims of a study, each by its results, as `score_claim` gives them.

    A claim is decided once both of its arms have all seeds. It is *refuted* if the interval of the
    gain ends below the smallest difference of interest and `q_refuted` is below `level`: a gain
    that is real but smaller than is of interest refutes it, too. Otherwise it is *confirmed* if the
    interval begins above 0, q is below `level`, and the arm did not diverge more often than the
    other. Else it is *undecided*.
    """
    summaries = [_summarise(claim, trials, level / len(claims)) for claim, trials in zip(claims, results, strict=True)]
    q = _correct([summary.p for summary in summaries], claims)
    refuted = _correct([summary.p_refuted for summary in summaries], claims)
    with_q = [replace(summary, q=q, q_refuted=r) for summary, q, r in zip(summaries, q, refuted, strict=True)]
    return [replace(summary, **_decide(summary, level)) for summary in with_q]


def _correct(p: Sequence[float], claims: Sequence[Claim]) -> list[float]:
    """Return the corrected p; a claim without a p counts as one of the family."""
    if not claims:
        return []
    known = np.array(p)
    adjusted = adjust_p(np.nan_to_num(known, nan=1.0), claims[0].correction)
    return np.where(np.isnan(known), nan, adjusted).tolist()


def _summarise(claim: Claim, results: pl.DataFrame, level: float) -> ClaimResult:
    trials = results.filter(pl.col("arm").is_in([claim.arm, claim.than]), pl.col("state").is_in(TERMINAL))
    ended = int((trials.group_by("seed").len()["len"] == 2).sum())
    empty = ClaimResult(
        claim=claim,
        verdict="undecided",
        reason="",
        ended=ended,
        pairs=0,
        diverged=(0, 0),
        seeds_needed=None,
        **dict.fromkeys(_NUMBERS, nan),
    )
    if trials["arm"].n_unique() < 2:
        return empty
    name = claim.metric.partition("/")[0]
    compared = compare_arms(results, claim.than, claim.direction, metric=name)
    rows = {row["arm"]: row for row in compared.table.iter_rows(named=True)}
    row, sign = rows[claim.arm], -sign_of(claim.direction)
    pairs = compared.pairs.filter(pl.col("arm") == claim.arm)
    differences = pairs["difference"].drop_nulls().to_numpy()
    result = replace(empty, pairs=len(differences), diverged=(row["diverged"], rows[claim.than]["diverged"]))
    if len(differences) < 2:
        return result
    less = sign * claim.difference
    none, interest = (summarize_differences(differences - shift) for shift in (0.0, less))
    finite = results.filter(pl.col("state") == "finished", pl.col("value").is_finite())
    values: dict[str, dict[int, float]] = {}
    for arm, seed, value in finite.select("arm", "seed", "value").iter_rows():
        values.setdefault(arm, {})[seed] = value - (less if arm == claim.arm else 0.0)
    p_refuted = choose_p(interest, values, (claim.than, claim.arm), name)
    ends = (row["difference_low"], row["difference_high"])
    ends = sorted(sign * end for end in ends if end is not None)
    spread = float(differences.std(ddof=1))
    wide = correct_spread(spread, len(differences) - 1)
    # Repeated differences are decided by sign flips, too, which few seeds cannot give a low p.
    fewest = FEWEST_OF_VERDICT
    if none.repeated or interest.repeated:
        fewest = max(fewest, 1 + next(flips for flips in count() if 2.0**-flips < level))
    return replace(
        result,
        gain=sign * none.mean,
        low=ends[0] if ends else nan,
        high=ends[-1] if ends else nan,
        p=nan if row["decisive_p"] is None else row["decisive_p"],
        p_refuted=nan if row["decisive_p"] is None else p_refuted,
        spread=spread,
        power=find_power(none.pairs, wide, claim.difference, level) if none.pairs >= fewest else 0.0,
        seeds_needed=max(fewest, count_seeds(wide, claim.difference, level)),
    )


_NUMBERS = ("gain", "low", "high", "p", "q", "p_refuted", "q_refuted", "spread", "power")


def _decide(result: ClaimResult, level: float) -> dict[str, str]:
    """Return the verdict, and why, in words."""
    claim = result.claim
    interest = f"{claim.difference:g}"
    if result.ended < claim.seeds:
        return {"verdict": "undecided", "reason": f"{result.ended:,} of {claim.seeds:,} seeds have ended"}
    if isnan(result.p):
        return {"verdict": "undecided", "reason": f"{result.pairs:,} seeds that both arms finished are too few to tell"}
    if result.high < claim.difference and result.q_refuted < level:
        return {"verdict": "refuted", "reason": f"a gain of {interest} or more is told apart from what was found"}
    if not (result.low > 0 and result.q < level):
        return {"verdict": "undecided", "reason": f"neither no gain nor one of {interest} is told apart from it"}
    if result.diverged[0] > result.diverged[1]:
        return {
            "verdict": "undecided",
            "reason": f"the gain is told apart from none, but {claim.arm} diverged more often",
        }
    return {"verdict": "confirmed", "reason": "the gain is told apart from none"}
