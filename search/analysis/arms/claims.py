"""Claims about two arms, decided: confirmed, refuted, or undecided, with the power that the seeds had.

Legend: the *gain* of a seed is the difference of the two arms on the side that the claim names: positive where the arm
that is said to be better is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A claim and what its trials say. Gains and their interval are NaN where too few seeds tell."""

    claim: Claim
    verdict: ClaimVerdict
    reason: str
    """Why, in words."""
    ended: int
    """Seeds of which the trials of both arms have ended, whatever their outcome."""
    pairs: int
    """Seeds that both arms finished."""
    diverged: tuple[int, int]
    """Trials of the two arms that diverged."""
    gain: float
    low: float
    high: float
    """Student's paired 95 % interval of the gain."""
    p: float
    """The p of the hypothesis of no gain, which decides on arms (column `decisive_p` of `ArmComparison.table`); NaN
    where so few seeds give no verdict."""
    q: float
    """p, corrected over the claims of the study."""
    p_refuted: float
    """The same p of a gain as large as the smallest difference of interest."""
    q_refuted: float
    spread: float
    """Standard deviation of the gains."""
    power: float
    """The probability that so many pairs confirm the claim if the gain is the smallest difference of interest, which
    is also the probability that they refute it if there is no gain: with this spread, and normal gains."""
    seeds_needed: int | None
    """Seeds that find the smallest difference of interest four times in five, with this spread."""


def score_claim(compared: ComparedTrials, metrics: pl.DataFrame, claim: Claim, objective: str) -> pl.DataFrame:
    """Return condition, arm, seed, state and value of the trials that stand for the arms: what `compare_arms` takes.

    The value is the trial's objective if the claim is about that, else its last one of the metric; `metrics` come in
    the order of steps. Where fresh seeds decide, an arm has no trials before its confirmations.
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
    """Standard deviation of the differences over seeds, corrected for how few these are (`correct_spread`)."""
    freedom: int
    """Its degrees of freedom: pairs of trials, less one for each study that they are of."""
    detectable: float
    """The smallest difference that the claim's seeds find four times in five."""
    power: float
    """The probability that they find the claim's difference."""
    seeds_needed: int
    """Seeds that find the claim's difference four times in five."""


def advise_claim(claim: Claim, results: Sequence[pl.DataFrame], level: float = SURE) -> ClaimAdvice | None:
    """Return what a claim's seeds can find, by results of its arms in some studies, as `score_claim` gives them.

    None where no study has three seeds that both arms finished.
    """
    squares, freedom = 0.0, 0
    for one in results:
        finite = one.filter(pl.col("state") == "finished", pl.col("value").is_finite()).select("arm", "seed", "value")
        arms = [finite.filter(pl.col("arm") == arm) for arm in (claim.arm, claim.than)]
        pairs = arms[0].join(arms[1], on="seed")
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

    No claim is decided before both of its arms have all seeds. Then it is *refuted* if gains as large as the smallest
    difference of interest are told apart from those seen: the interval of the gain ends below that difference and
    `q_refuted` is below `level`. Otherwise it is *confirmed* if a gain is told apart from none: the interval begins
    above 0, q is below `level`, and the arm did not diverge more often than the other. Else it is *undecided*. A gain
    that is real but surely smaller than is of interest refutes the claim.
    """
    found = [_summarise(claim, one, level / len(claims)) for claim, one in zip(claims, results, strict=True)]
    corrected = [_correct([one.p for one in found], claims), _correct([one.p_refuted for one in found], claims)]
    with_q = [replace(one, q=q, q_refuted=other) for one, q, other in zip(found, *corrected, strict=True)]
    return [replace(one, **_decide(one, level)) for one in with_q]


def _correct(p: Sequence[float], claims: Sequence[Claim]) -> list[float]:
    """Return the corrected p; a claim that has no p yet keeps its place among the others."""
    if not claims:
        return []
    known = np.array(p)
    adjusted = adjust_p(np.nan_to_num(known, nan=1.0), claims[0].correction)
    return np.where(np.isnan(known), nan, adjusted).tolist()


def _summarise(claim: Claim, results: pl.DataFrame, level: float) -> ClaimResult:
    own = results.filter(pl.col("arm").is_in([claim.arm, claim.than]), pl.col("state").is_in(TERMINAL))
    ended = int((own.group_by("seed").len()["len"] == 2).sum())
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
    if own["arm"].n_unique() < 2:
        return empty
    name = claim.metric.partition("/")[0]
    compared = compare_arms(results, claim.than, claim.direction, metric=name)
    rows = {row["arm"]: row for row in compared.table.iter_rows(named=True)}
    row, sign = rows[claim.arm], -sign_of(claim.direction)
    differences = compared.pairs.filter(pl.col("arm") == claim.arm)["difference"].drop_nulls().to_numpy()
    found = replace(empty, pairs=len(differences), diverged=(row["diverged"], rows[claim.than]["diverged"]))
    if len(differences) < 2:
        return found
    less = sign * claim.difference
    none, interest = (summarize_differences(differences - shift) for shift in (0.0, less))
    values = _values_of(results, {claim.arm: less})
    p_refuted = choose_p(interest, values, (claim.than, claim.arm), name)
    ends = sorted(sign * row[end] for end in ("difference_low", "difference_high") if row[end] is not None)
    spread = float(differences.std(ddof=1))
    wide = correct_spread(spread, len(differences) - 1)
    # Where differences are repeated the sign flips decide, too, and of few seeds these cannot have a low p.
    fewest = FEWEST_OF_VERDICT
    if none.repeated or interest.repeated:
        fewest = max(fewest, 1 + next(flips for flips in count() if 2.0**-flips < level))
    return replace(
        found,
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


def _values_of(results: pl.DataFrame, less: Mapping[str, float]) -> dict[str, dict[int, float]]:
    """Return the finite values by arm and seed, those of some arms so much less."""
    finite = results.filter(pl.col("state") == "finished", pl.col("value").is_finite())
    return {
        str(arm): {seed: value - less.get(str(arm), 0.0) for seed, value in own.select("seed", "value").iter_rows()}
        for (arm,), own in finite.group_by("arm")
    }


def _decide(found: ClaimResult, level: float) -> dict[str, str]:
    """Return the verdict, and why, in words."""
    claim = found.claim
    interest = f"{claim.difference:g}"
    if found.ended < claim.seeds:
        return {"verdict": "undecided", "reason": f"{found.ended:,} of {claim.seeds:,} seeds have ended"}
    if isnan(found.p):
        return {"verdict": "undecided", "reason": f"{found.pairs:,} seeds that both arms finished are too few to tell"}
    if found.high < claim.difference and found.q_refuted < level:
        return {"verdict": "refuted", "reason": f"a gain of {interest} or more is told apart from what was found"}
    if not (found.low > 0 and found.q < level):
        return {"verdict": "undecided", "reason": f"neither no gain nor one of {interest} is told apart from it"}
    if found.diverged[0] > found.diverged[1]:
        return {
            "verdict": "undecided",
            "reason": f"the gain is told apart from none, but {claim.arm} diverged more often",
        }
    return {"verdict": "confirmed", "reason": "the gain is told apart from none"}
