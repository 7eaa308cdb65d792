"""Each stopping policy against its rule, written a second time in the plainest way."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.stopping import Monitor, Stopping, begin_policies
from search.stopping.asha import HalvingMonitor
from search.stopping.median import MedianMonitor
from spaces import plugins
from spaces.errors import GraftError, StudyError
from spaces.records import Metric, Report, State
from spaces.settings import Objective
from storage.control.history import is_landmark
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


def study_of(name: str, seed: int, steps: Sequence[int]) -> tuple[Monitor, list[Report], dict[int, State]]:
    """Return a policy after 60 made-up trials in 8 lanes, their reports by number and step, and how they ended."""
    draw, live = random.Random(seed), monitor(name)
    waiting, running = [*range(60)], dict[int, int]()
    reports, states = list[Report](), dict[int, State]()
    while waiting or running:
        while waiting and len(running) < 8:
            running[waiting.pop(0)] = 0
        number = draw.choice([*running])
        message = report(number, steps[running[number]], draw.random() / (1 + running[number]))
        reports.append(message)
        running[number] += 1
        verdict: State | None = "pruned" if stopped(live, [message]) else None
        if verdict or running[number] == len(steps):
            states[number] = verdict or "finished"
            del running[number]
            live.forget(number)
    return live, sorted(reports, key=lambda message: (message.number, message.step)), states


@pytest.mark.parametrize("seed", range(5))
def test_a_resumed_halving_knows_every_result_at_every_rung(seed: int) -> None:
    live, past, states = study_of("asha", seed, (1, 3, 9, 27))
    resumed = monitor("asha")
    assert isinstance(live, HalvingMonitor)
    assert isinstance(resumed, HalvingMonitor)
    assert resumed.compares == "tvd"
    resumed.recall_reports(past, states)
    assert resumed.results == live.results
    assert len(live.results[0]) == 60
    assert len(live.results[2]) > 5


def test_a_resumed_halving_knows_the_results_of_trials_that_go_on() -> None:
    resumed = monitor("asha")
    resumed.recall_reports([report(number, 1, float(number)) for number in range(1, 10)], {})
    resumed.restore(3, 0, [3.0, 1])
    assert stopped(resumed, [report(20, 1, 100.0)]) == {20}


@pytest.mark.parametrize("seed", range(3))
def test_a_resumed_halving_enters_a_stopped_trial_at_no_rung_beyond(seed: int) -> None:
    live, past, states = study_of("asha", seed, (9, 27))  # each first report reaches three rungs
    resumed = monitor("asha")
    assert isinstance(live, HalvingMonitor)
    assert isinstance(resumed, HalvingMonitor)
    resumed.recall_reports(past, states)
    assert resumed.results[0] == live.results[0]
    for rung in (1, 2):
        assert {*resumed.results[rung]} >= {
            min(message.metrics[0].value for message in past if message.number == number and message.step == 9)
            for number, state in states.items()
            if state == "finished"
        }
        assert len(resumed.results[rung]) < 60


@pytest.mark.parametrize("seed", range(3))
def test_a_resumed_median_has_the_averages_of_all_reports(seed: int) -> None:
    live, past, states = study_of("median", seed, (1, 2, 3, 4))
    resumed = monitor("median")
    assert isinstance(live, MedianMonitor)
    assert isinstance(resumed, MedianMonitor)
    resumed.recall_reports(past, states)
    assert {step: sorted(values) for step, values in resumed.averages.items()} == {
        step: pytest.approx(sorted(values)) for step, values in live.averages.items()
    }


def test_a_resumed_median_interpolates_the_reports_that_the_history_dropped() -> None:
    live, resumed = monitor("median"), monitor("median")
    assert isinstance(live, MedianMonitor)
    assert isinstance(resumed, MedianMonitor)
    whole = [report(number, step, (1 + number / 9) / step) for number in range(9) for step in range(10, 641, 10)]
    stopped(live, whole)
    kept = [message for message in whole if is_landmark("thin", message.step // 10)]
    assert len(kept) < len(whole) / 2
    resumed.recall_reports(kept, {})
    assert resumed.averages.keys() == live.averages.keys()
    for step, values in live.averages.items():
        assert sorted(resumed.averages[step]) == pytest.approx(sorted(values), rel=0 if step <= 160 else 0.01)


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


def test_policies_that_copy_and_policies_that_compare_do_not_go_together() -> None:
    assert len(begin_policies(space(PLAIN, stopping="[{population: {every: 10}}, {patience: {steps: 20}}]"))) == 2
    with pytest.raises(StudyError, match="population stands alone or with patience"):
        begin_policies(space(PLAIN, stopping="[{population: {every: 10}}, {asha: {min_steps: 10}}]"))
