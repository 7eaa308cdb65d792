"""What reports claim, on made studies: intervals hold the truth, nothing is claimed of nothing, and effects are told.

The numbers of docs/how-to/compare.md come from `python -m benchmarks.statistics`, whose functions these are.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks.statistics import INTERVALS, Kind, claims, coverage, false_claims, made_study, power

SLACK = 2 * sqrt(0.05 * 0.95)
"""Two standard errors of a share of 5 %, times the root of the number."""


@pytest.mark.sampled(0, 6)
@pytest.mark.parametrize("kind", INTERVALS)
def test_an_interval_holds_the_truth_as_often_as_it_says(kind: str) -> None:
    assert 0.93 <= coverage(kind, 1_000) <= 0.97


@pytest.mark.parametrize(
    ("quantiles", "skew"), [((0.0, 1.0), 0.5), ((0.25, 0.75), 0.5), ((0.0, 0.1), 0.5), ((0.0, 0.1), 0.0)]
)
def test_the_truth_of_a_kind_of_interval_is_what_many_numbers_have(quantiles: tuple[float, float], skew: float) -> None:
    z = ndtri((np.arange(200_000) + 0.5) / 200_000)
    values = np.expm1(skew * z) / skew if skew else z
    low, high = (int(share * len(z)) for share in quantiles)
    truth = Kind(lambda _: (0, 0), 1, between=quantiles).truth(skew)
    assert truth == pytest.approx(values[low:high].mean(), abs=1e-3)


def test_a_large_effect_is_told_in_a_sentence_and_in_the_table() -> None:
    sentences, verdicts = claims(made_study(6.0, 8, seed=0))
    assert [sentence.partition(":")[0] for sentence in sentences] == ["other is better than baseline"]
    assert verdicts == ["better"] * 3
    assert claims(made_study(0.0, 8, seed=1)) == ([], [])


def test_a_few_studies_without_effect_claim_little() -> None:
    assert false_claims(20, 5) <= 0.05 + SLACK / sqrt(20)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_of_a_thousand_studies_without_effect_one_in_twenty_reports_claims_anything(seeds: int) -> None:
    assert false_claims(1_000, seeds) <= 0.05 + SLACK / sqrt(1_000)


@pytest.mark.long
def test_power_grows_with_the_effect_and_the_seeds() -> None:
    assert power(1.0, 5, 60) < power(2.0, 5, 60) < power(2.0, 8, 60)
    assert power(3.0, 8, 60) > 0.9
