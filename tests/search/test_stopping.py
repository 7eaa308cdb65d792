"""Each stopping policy against its rule, written a second time in the plainest way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.stopping import Monitor, Stopping
from spaces import plugins
from spaces.errors import GraftError
from spaces.records import Metric, Report
from spaces.settings import Objective
from tests.support.plug_ins import example
from tests.support.search_spaces import PLAIN, space
from tests.support.stopping import OBJECTIVE, report

pytestmark = pytest.mark.fast

Loss = float
FINITE = st.integers(0, 30).map(float)


def monitor(name: str, objective: Objective = OBJECTIVE, **fields: object) -> Monitor:
    """Return a policy at work, from its configuration."""
    return plugins.build(Stopping, {"name": name, **fields}).begin(objective)


def stopped(monitor: Monitor, reports: Sequence[Report], group: int = 0) -> set[int]:
    """Return what the policy says of these reports, all of one group."""
    return monitor.observe(reports, {report.number: group for report in reports})


# ------------------------------------------------------------------------------------------------------------- patience


def paper_stop(curves: Sequence[Sequence[tuple[float, float]]], patience: int) -> int | None:
    """Paper 003, 5.4, in lockstep: the validation after which the ensemble stops, None if it never does.

    It stops at the first validation that lies `patience` validations after the last one at which some member had a new
    best value of its own in one of the two variants.
    """
    for now in range(len(curves[0])):
        last = max(
            validation
            for curve in curves
            for variant in (0, 1)
            for validation in range(now + 1)
            if all(curve[validation][variant] < curve[before][variant] for before in range(validation))
        )
        if now - last >= patience:
            return now
    return None


@given(
    curves=st.integers(1, 12).flatmap(
        lambda length: st.lists(
            st.lists(st.tuples(FINITE, FINITE), min_size=length, max_size=length), min_size=1, max_size=4
        )
    ),
    patience=st.integers(1, 4),
)
def test_patience_is_the_papers_rule(curves: list[list[tuple[float, float]]], patience: int) -> None:
    here = monitor("patience", metric="tvd", steps=10 * patience)
    expected = paper_stop(curves, patience)
    for now in range(len(curves[0])):
        said = stopped(here, [report(n, 10 * (now + 1), *curve[now]) for n, curve in enumerate(curves)])
        assert said == (set(range(len(curves))) if now == expected else set())
        if now == expected:
            break


def test_patience_counts_the_own_steps_of_trials_that_joined_late() -> None:
    here = monitor("patience", metric="tvd", steps=20)
    assert stopped(here, [report(0, 100, 0.5)]) == set()
    assert stopped(here, [report(0, 110, 0.5), report(1, 10, 0.9)]) == set()
    assert stopped(here, [report(0, 120, 0.5), report(1, 20, 0.9)]) == set()
    assert stopped(here, [report(0, 130, 0.5), report(1, 30, 0.9)]) == {0, 1}


def test_patience_stops_one_group_and_leaves_the_others() -> None:
    here = monitor("patience", metric="tvd", steps=10)
    groups = {0: 0, 1: 1}
    assert here.observe([report(0, 10, 0.5), report(1, 10, 0.5)], groups) == set()
    assert here.observe([report(0, 20, 0.5), report(1, 20, 0.4)], groups) == {0}


def test_a_trial_that_ended_or_left_keeps_nobody_running() -> None:
    for leave in ("finished", "forgotten"):
        here = monitor("patience", metric="tvd", steps=10)
        stopped(here, [report(0, 10, 0.5), report(1, 10, 0.5)])
        if leave == "finished":
            assert stopped(here, [report(0, 20, 0.5), report(1, 20, 0.1, state="finished")]) == {0}
        else:
            here.forget(1)
            assert stopped(here, [report(0, 20, 0.5)]) == {0}


def test_a_value_that_is_not_finite_is_no_improvement() -> None:
    here = monitor("patience", metric="tvd", steps=10)
    stopped(here, [report(0, 10, 0.5)])
    assert stopped(here, [report(0, 20, -math.inf)]) == {0}


def test_patience_with_one_variant_does_not_see_the_other() -> None:
    for metric, expected in (("tvd", set()), ("tvd/raw", {0}), ("objective", {0})):
        here = monitor("patience", metric=metric, steps=10)
        stopped(here, [report(0, 10, 0.5, 0.5)])
        assert stopped(here, [report(0, 20, 0.5, 0.4)]) == expected


def test_a_shifted_evaluation_is_another_metric() -> None:
    """`tvd` is the plain evaluation; a shifted one is watched when it is named."""
    for metric, expected in (("tvd", {0}), ("tvd/raw/length=64", set())):
        here = monitor("patience", metric=metric, steps=10)
        for step, shifted in ((10, 0.5), (20, 0.4)):
            metrics = (Metric("tvd", "raw", "", 0.5), Metric("tvd", "raw", "length=64", shifted))
            said = stopped(here, [Report(number=0, step=step, metrics=metrics)])
        assert said == expected


def test_the_better_direction_is_the_objectives_unless_it_is_given() -> None:
    most = Objective(direction="maximize", metric="tvd", variant="raw")
    for objective, fields, expected in (
        (OBJECTIVE, {}, set()),
        (most, {}, {0}),
        (most, {"direction": "minimize"}, set()),
    ):
        here = monitor("patience", objective, steps=10, **fields)
        stopped(here, [report(0, 10, 0.5)])
        assert stopped(here, [report(0, 20, 0.4)]) == expected


# ---------------------------------------------------------------------------------------------------- asha and median

STREAM = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12), FINITE | st.just(math.nan)), max_size=60)
"""Reports in the order in which they arrive: trial, steps since its last report, loss."""


def stream(events: Iterable[tuple[int, int, Loss]]) -> Iterable[Report]:
    """Yield the reports of a stream, each trial's steps summed up."""
    steps: dict[int, int] = {}
    for number, more, loss in events:
        steps[number] = steps.get(number, 0) + more
        yield report(number, steps[number], loss)


@given(events=STREAM, first=st.integers(1, 5), eta=st.sampled_from([1.5, 2.0, 3.0, 4.0]))
def test_successive_halving_is_the_rule_over_the_whole_log(
    events: list[tuple[int, int, float]], first: int, eta: float
) -> None:
    here = monitor("asha", min_steps=first, eta=eta)
    results: list[tuple[int, int, float]] = []
    """Rung, trial, loss: all results so far."""
    curves: dict[int, list[float]] = {}
    dead: set[int] = set()
    for message in stream(events):
        if message.number in dead:
            continue
        loss = message.metrics[0].value
        survives = True
        if math.isfinite(loss):
            curves.setdefault(message.number, []).append(loss)
            for rung in range(20):
                known = any(result[:2] == (rung, message.number) for result in results)
                if not survives or known or first * eta**rung > message.step:
                    continue
                best = min(curves[message.number])
                results.append((rung, message.number, best))
                losses = sorted(loss for at, _, loss in results if at == rung)
                kept = losses[: max(1, math.floor(len(losses) / eta))]
                survives = best <= kept[-1]
        assert stopped(here, [message]) == (set() if survives else {message.number})
        if not survives:
            dead.add(message.number)
            here.forget(message.number)


@given(calls=st.lists(STREAM, max_size=4), trials=st.integers(1, 4), grace=st.integers(1, 20))
def test_the_median_rule_is_the_rule_over_the_whole_log(
    calls: list[list[tuple[int, int, float]]], trials: int, grace: int
) -> None:
    here = monitor("median", trials=trials, steps=grace)
    curves: dict[int, list[float]] = {}
    averages: list[tuple[int, float]] = []
    """Step, running average: all so far."""
    everything = list(stream(event for call in calls for event in call))
    for call in calls:
        reports, everything = everything[: len(call)], everything[len(call) :]
        bests: list[tuple[Report, float]] = []
        for message in reports:
            loss = message.metrics[0].value
            if math.isfinite(loss):
                curve = curves.setdefault(message.number, [])
                curve.append(loss)
                averages.append((message.step, math.fsum(curve) / len(curve)))
                bests.append((message, min(curve)))
        expected: set[int] = set()
        for message, best in bests:
            there = [average for step, average in averages if step == message.step]
            if message.step >= grace and len(there) >= trials and best > median(there):
                expected.add(message.number)
        assert stopped(here, reports) == expected


def test_a_trial_that_started_again_counts_once_in_the_median() -> None:
    here = monitor("median", trials=3)
    assert stopped(here, [report(0, 1, 1.0), report(1, 1, 2.0)]) == set()
    here.forget(1)
    assert stopped(here, [report(1, 1, 9.0)]) == set(), "two trials are known, not three"
    assert stopped(here, [report(2, 1, 5.0)]) == set()
    assert stopped(here, [report(3, 1, 8.0)]) == {3}, "the median of 1, 9, 5 and 8 is 6.5"


@pytest.mark.parametrize("name", ["asha", "median"])
def test_stored_reports_make_a_monitor_judge_as_if_it_had_never_stopped(name: str) -> None:
    past = [report(number, step, (number + 1) / step) for number in range(8) for step in (1, 3, 9)]
    live, resumed = monitor(name), monitor(name)
    stopped(live, past)
    assert resumed.compares == "tvd"
    resumed.recall_reports(past, dict.fromkeys(range(8), 0))
    for number, value in ((8, 0.0), (9, 2.5), (10, 100.0)):
        assert stopped(live, [report(number, 1, value)]) == stopped(resumed, [report(number, 1, value)])
    assert stopped(resumed, [report(11, 1, 200.0)]) == {11}


# -------------------------------------------------------------------------------------------------------------- fields


@pytest.mark.parametrize("name", plugins.names(Stopping))
def test_a_policys_configuration_builds_it_again(name: str) -> None:
    policy = plugins.build(Stopping, {**example(Stopping, name), "metric": "tvd/bema"})
    assert plugins.build(Stopping, plugins.config_of(policy)) == policy


@pytest.mark.parametrize("metric", ["''", "/raw", "tvd/", "tvd//x", "3"])
def test_a_metric_that_is_no_name_is_an_error_at_its_line(metric: str) -> None:
    if metric == "3":
        with pytest.raises(GraftError, match="a metric"):
            plugins.build(Stopping, {"name": "patience", "metric": 3, "steps": 1})
        return
    with pytest.raises(GraftError, match=r"test.yaml:\d+: search.stopping.*must be a metric"):
        space(PLAIN, stopping=f"{{patience: {{metric: {metric}, steps: 5}}}}")


def test_several_policies_may_stand_in_a_space() -> None:
    here = space(PLAIN, stopping="[{patience: {metric: tvd, steps: 5}}, asha, {median: {trials: 3}}]")
    assert [plugins.name_of(policy) for policy in here.search.stopping] == ["patience", "asha", "median"]
