"""What trials of a task say of the next ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from search.analysis.statistics.best_of import expected_best
from search.analysis.statistics.power import correct_spread, find_power
from search.analysis.task_advice import (
    Evidence,
    Setting,
    advise_task,
    estimate_noise,
    find_ranges,
    predict_best,
)

pytestmark = pytest.mark.fast

SETTING = Setting('{"name":"copying"}', "transformer", "loss/raw", "minimize", "last", 40)


def evidence(
    costs: Sequence[float | None],
    params: Sequence[object] | None = None,
    configs: Sequence[str] | None = None,
    *,
    study: str = "one",
    setting: Setting = SETTING,
    is_random: bool = True,
) -> Evidence:
    count = len(costs)
    trials = pl.DataFrame(
        {
            "seed": range(count),
            "state": ["finished"] * count,
            "objective": costs,
            "config": configs or [f"{number}" for number in range(count)],
            "params": [json.dumps(values) for values in params or [{}] * count],
        },
        schema_overrides={"objective": pl.Float64},
    )
    return Evidence(study=study, setting=setting, trials=trials, is_random=is_random)


def test_noise_is_pooled_over_configurations_that_have_two_seeds() -> None:
    noise = estimate_noise([evidence([1.0, 3.0, 10.0, 11.0, 12.0, 50.0, None], configs=[*"aabbbcb"])])
    assert noise is not None
    spread = np.sqrt((2 + 2) / 3)
    assert (noise.configurations, noise.trials) == (2, 5)
    assert noise.spread == pytest.approx(correct_spread(spread, 3))
    ends = [np.sqrt(4 / stats.chi2.ppf(tail, 3)) for tail in (0.975, 0.025)]
    assert [noise.low, noise.high] == pytest.approx(ends)
    assert estimate_noise([evidence([1.0, 2.0])]) is None


def test_a_trial_that_two_studies_trained_counts_once_in_the_noise() -> None:
    larger = evidence([1.0, 3.0, 5.0, 10.0, 12.0, None], configs=[*"aaabbb"], study="two")
    same = evidence([1.0, 3.0, None, 10.0], configs=[*"aaab"])
    assert estimate_noise([same, larger]) == estimate_noise([larger])
    others = larger.trials.with_columns(seed=pl.col("seed") + 100)
    both = estimate_noise([larger, replace(larger, study="three", trials=others)])
    assert both is not None
    assert (both.configurations, both.trials) == (4, 10)


def test_pruned_trials_are_no_noise_since_they_are_of_fewer_steps() -> None:
    whole = evidence([1.0, 3.0, 5.0, 9.0], configs=[*"aabb"])
    cut = evidence([7.0, 8.0], configs=[*"ab"], study="two").trials
    cut = cut.with_columns(seed=pl.col("seed") + 100, state=pl.lit("pruned"))
    both = replace(whole, trials=pl.concat([whole.trials, cut]))
    assert estimate_noise([both]) == estimate_noise([whole])


def test_the_seeds_that_are_told_have_the_power_and_one_less_has_not() -> None:
    rng = np.random.default_rng(0)
    [advice] = advise_task([evidence(rng.normal(size=60).tolist(), configs=["a"] * 60)], difference=0.5).settings
    [(difference, seeds)] = advice.seeds
    assert advice.noise is not None
    spread = np.sqrt(2) * advice.noise.spread
    assert find_power(seeds, spread, difference, 0.05) >= 0.8 > find_power(seeds - 1, spread, difference, 0.05)


def test_the_interval_of_the_best_holds_as_often_as_it_says() -> None:
    """Its ends are known numbers, so that it holds 95 % or a little more, whatever the distribution."""
    rng = np.random.default_rng(1)
    for count in (1, 4, 16):
        hits, above = 0, 0
        for _ in range(600):
            [best] = predict_best(rng.exponential(size=200), 1.0, [count])
            new = rng.exponential(size=count).min()
            assert best.worse is not None
            hits += (best.better is None or best.better <= new) and new <= best.worse
            above += new > best.worse
        assert 0.93 <= hits / 600 <= 1.0
        assert above / 600 < 0.05


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 80))
def test_the_best_is_what_order_statistics_say(costs: list[float], count: int) -> None:
    values = np.array(costs)
    [best] = predict_best(values, 1.0, [count])
    assert (best.expected is None) == (count > len(costs))
    if best.expected is not None:
        assert best.expected == pytest.approx(expected_best(values)[count - 1])
    assert best.better is None or best.worse is None or best.better <= best.worse
    [turned] = predict_best(values, -1.0, [count])
    assert turned.better == (None if best.better is None else -best.better)
    # No better end where one of the new trials beats all known ones more often than once in forty.
    assert (best.better is None) == (count / (len(costs) + count) > 0.025 + 1e-12)


def test_trials_that_diverged_count_as_the_worst() -> None:
    [advice] = advise_task([evidence([1.0, 2.0, None, None])], counts=(1, 3)).settings
    assert (advice.trials, advice.diverged) == (4, 2)
    assert [best.expected for best in advice.best] == [None, pytest.approx(0.75 * 1 + 0.25 * 2)]


def test_a_knob_that_matters_is_told_and_others_are_not() -> None:
    rng = np.random.default_rng(3)
    params = [
        {"rate": float(rate), "kind": kind, "idle": float(idle), "task.chance": 0.5}
        for rate, kind, idle in zip(rng.random(300), rng.choice([*"abc"], 300), rng.random(300), strict=True)
    ]
    costs = [abs(values["rate"] - 0.5) + (0.2 if values["kind"] != "a" else 0) for values in params]
    knobs = {knob.path: knob for knob in find_ranges([evidence(costs, params)])}
    assert set(knobs) == {"rate", "kind", "idle"}  # what is equal in all trials is no knob
    assert {path for path, knob in knobs.items() if knob.is_told} == {"rate", "kind"}
    assert knobs["rate"].low is not None
    assert knobs["rate"].high is not None
    assert 0.4 < knobs["rate"].low < 0.5 < knobs["rate"].high < 0.6
    assert knobs["kind"].options["a"][0] == knobs["kind"].winners == 30
    assert sum(every for _, every in knobs["kind"].options.values()) == 300


@pytest.mark.long
def test_values_that_do_not_matter_are_told_from_chance_as_rarely_as_is_said() -> None:
    """Ties too: half of the trials have a rate of 0, as `relu(uniform(...))` draws it."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(150):
        params = [
            {"tied": max(0.0, float(rate)), "kind": str(kind)}
            for rate, kind in zip(rng.uniform(-1, 1, 120), rng.choice([*"ab"], 120), strict=True)
        ]
        alarms += any(knob.is_told for knob in find_ranges([evidence(rng.random(120).tolist(), params)]))
    assert alarms / 150 < 0.09


def test_an_option_that_only_losers_of_a_study_have_says_nothing() -> None:
    rng = np.random.default_rng(6)
    params = [{"kind": str(kind)} for kind in rng.choice([*"ab"], 60)]
    noise = evidence(rng.random(60).tolist(), params)
    # None of the winners of the other study draws the kind at all, and it alone has the option c.
    losers = [{"kind": "ac"[number % 2]} if number < 4 else {"other": "x"} for number in range(12)]
    other = evidence([10.0 if number < 4 else 1.0 for number in range(12)], losers, study="two")
    (alone,), (both,) = (find_ranges(samples) for samples in ([noise], [noise, other]))
    assert both.options["c"] == (0, 2)
    assert both.q == alone.q
    assert not both.is_told


def test_winners_are_of_their_own_study_so_that_scales_do_not_matter() -> None:
    rng = np.random.default_rng(5)
    params = [{"rate": float(rate)} for rate in rng.random(100)]
    small = evidence([values["rate"] for values in params], params)
    large = evidence(
        [1e6 + values["rate"] for values in params], params, study="two", setting=SETTING._replace(steps=80)
    )
    [knob] = find_ranges([small, large])
    assert (knob.winners, knob.trials) == (20, 200)
    assert knob.high is not None
    assert knob.high < 0.2


def test_trials_that_a_sampler_steered_give_ranges_without_a_test_and_no_best() -> None:
    params = [{"rate": number / 60} for number in range(60)]
    steered = evidence([values["rate"] for values in params], params, is_random=False)
    advice = advise_task([steered])
    assert (advice.settings[0].best, advice.settings[0].random) == ((), 0)
    assert [(knob.q, knob.winners) for knob in advice.knobs] == [(None, 6)]
    more = advise_task([steered, evidence([values["rate"] for values in params] * 2, params * 2)])
    assert [knob.trials for knob in more.knobs] == [120]  # random trials alone, where there are some


def test_nothing_is_said_of_too_few_trials() -> None:
    assert find_ranges([evidence([1.0, 2.0], [{"rate": 1}, {"rate": 2}])]) == []
    assert advise_task([]).settings == []


@given(st.integers(2, 40), st.booleans())
def test_a_setting_in_words_has_its_task_and_steps(steps: int, maximize: bool) -> None:
    task = json.dumps({"name": "clrs_text", "corpus": {"words": steps}, "size": steps})
    words = Setting(task, "m", "loss/raw", "maximize" if maximize else "minimize", "best", steps).describe()
    assert words.startswith("clrs_text (corpus {")
    assert f"{steps:,} steps" in words
