"""The time that a study will take yet, against simulated studies whose end is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

import pytest

from graft.stored.status import read_status
from search.steering.running_trials import RunningTrial
from search.steering.time_left import EndedTrial, OpenTrial, Pace, estimate_time_left
from spaces.progress import TimeLeft
from spaces.records import TrialResult
from storage import open_reader
from tests.support.databases import controlled, make_report, make_trial, raw

pytestmark = pytest.mark.fast

LANES, TRIALS, EVERY = 8, 60, 50


class Look(NamedTuple):
    """What is estimated at one moment of a simulation."""

    time: float
    ended: int
    left: TimeLeft | None


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Lanes that train trials at a constant speed, and report to a `Pace` every EVERY steps."""

    planned: Callable[[int], int] = lambda number: 1000
    trained: Callable[[int], int] = lambda number: 1000
    """Steps after which the trial ends, stopped early or not."""
    seconds_per_step: Callable[[int], float] = lambda number: 0.1
    params: Callable[[int], dict[str, int]] = lambda number: {}
    tick: float = 0.7

    def run(self) -> Iterator[Look]:
        pace, now, following = Pace(), 0.0, 0
        running: list[RunningTrial] = []
        free = [0.0] * LANES
        """When each free lane became free: the end of its trial, between two looks."""
        ended = 0
        while following < TRIALS or running:
            for runner in [*running]:
                number = runner.trial.number
                seconds, end = self.seconds_per_step(number), self.trained(number)
                made = min(int((now - runner.started) / seconds + 1e-9), end)
                if made == end:
                    runner.step = end
                    running.remove(runner)
                    free.append(runner.started + end * seconds)
                    pace.note_end(runner, free[-1])
                    ended += 1
                elif made // EVERY > runner.step // EVERY:
                    runner.step = made // EVERY * EVERY
                    runner.reported = runner.started + runner.step * seconds
            while free and following < TRIALS:
                trial = make_trial(following)
                config = {**trial.config, "training": {"steps": self.planned(following)}}
                trial = replace(trial, config=config, params=self.params(following))
                running.append(RunningTrial(trial, "w", started=free.pop(0)))
                pace.note_start(trial)
                following += 1
            yield Look(now, ended, pace.time_left(running, TRIALS - following, now))
            now += self.tick


def known(looks: list[Look]) -> list[tuple[Look, TimeLeft]]:
    return [(look, look.left) for look in looks if look.left is not None]


def share_within(looks: list[Look]) -> float:
    """Return the share of moments at which the true rest is within the range."""
    end, slack = looks[-1].time, 1.0  # a simulation ends trials up to a tick late
    hits = [left.least - slack <= end - look.time <= left.most + slack for look, left in known(looks)]
    return sum(hits) / len(hits)


def test_nothing_is_said_before_a_report() -> None:
    looks = list(Simulation().run())
    assert looks[0].left is None
    assert known(looks)[0][0].time == pytest.approx(EVERY * 0.1, abs=0.8)


def test_at_a_constant_speed_neither_end_of_the_range_rises_and_the_truth_is_within_it() -> None:
    looks = list(Simulation().run())
    lefts = [left for look, left in known(looks) if look.ended]  # the running ones alone tell a little less
    for before, after in pairwise(lefts):
        assert after.least <= before.least + 1e-9
        assert after.most <= before.most + 1e-9
    assert share_within(looks) == 1
    assert all(left.most <= 1.5 * left.least + 1 for left in lefts[: len(lefts) // 2]), "it means something"


def early_stopping(seed: int) -> Simulation:
    """Successive halving: half of the trials are stopped at each of 125, 250 and 500 of 1,000 steps."""
    chance = Random(seed)
    ends = [next((rung for rung in (125, 250, 500) if chance.random() < 0.5), 1000) for _ in range(TRIALS)]
    return Simulation(trained=ends.__getitem__)


def different_trials(seed: int) -> Simulation:
    """Trials of 500, 1,000 or 2,000 steps, which take a fifth more or less time each."""
    chance = Random(seed)
    steps = [chance.choice([500, 1000, 2000]) for _ in range(TRIALS)]
    speeds = [chance.choice([0.08, 0.1, 0.12]) for _ in range(TRIALS)]
    return Simulation(planned=steps.__getitem__, trained=steps.__getitem__, seconds_per_step=speeds.__getitem__)


@pytest.mark.parametrize("seed", range(5))
def test_with_early_stopping_the_most_never_rises_nor_the_least_between_two_endings(seed: int) -> None:
    looks = [(look, left) for look, left in known(list(early_stopping(seed).run())) if look.ended]
    for (look, before), (other, after) in pairwise(looks):
        assert after.most <= before.most + 1e-9
        if look.ended == other.ended:
            assert after.least <= before.least + 1e-9


@pytest.mark.parametrize("kind", [early_stopping, different_trials])
def test_the_true_end_is_within_the_range_at_nine_moments_in_ten(kind: Callable[[int], Simulation]) -> None:
    shares = [share_within(list(kind(seed).run())) for seed in range(8)]
    assert sum(shares) / len(shares) > 0.9
    assert min(shares) > 0.7


def test_a_transfer_says_nothing_before_stage_two_and_then_judges_by_it() -> None:
    """Stage one has long trials, stage two short ones; taken for alike, the rest would be ten times too long."""
    first = 10
    transfer = Simulation(
        planned=lambda number: 5000 if number < first else 500,
        trained=lambda number: 5000 if number < first else 500,
        params=lambda number: {"transfer.task": 0} if number < first else {"transfer.target": 0},
    )
    looks = list(transfer.run())
    end = looks[-1].time
    started = next(look.time for look in looks if look.ended > first - LANES)
    assert all(look.left is None for look in looks if look.time < started)
    late = [(look, left) for look, left in known(looks) if look.ended > first + LANES]
    assert late
    assert all(left.least - 1 <= end - look.time <= left.most + 1 for look, left in late)


def test_with_no_trial_waiting_the_longest_one_decides() -> None:
    ended = [EndedTrial(100, 100, 10.0)]
    running = [OpenTrial(100, 9.0), OpenTrial(100, 2.0)]
    assert estimate_time_left(ended, running, 0, 0.0) == TimeLeft(pytest.approx(8.0), pytest.approx(8.0))


def test_grahams_bounds_by_hand() -> None:
    ended = [EndedTrial(100, 100, 10.0)]
    running = [OpenTrial(100, 5.0), OpenTrial(100, 0.0)]
    # 15 lane-seconds run and 30 wait: 45 / 2, and half of the longest trial, of 10 seconds, more.
    assert estimate_time_left(ended, running, 3, 100.0) == TimeLeft(pytest.approx(22.5), pytest.approx(27.5))


@pytest.mark.parametrize(("ended", "running"), [([], [OpenTrial(9, 1.0)]), ([EndedTrial(9, 9, 1.0)], [])])
def test_where_nothing_ended_or_nothing_runs_nothing_is_known(
    ended: list[EndedTrial], running: list[OpenTrial]
) -> None:
    assert estimate_time_left(ended, running, 5, 10.0) is None


# ----------------------------------------------------------------------------------------------- from a database alone


def ago(url: str, seconds: int) -> str:
    """Return SQL for a moment in the past."""
    if url.startswith("sqlite"):
        return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', '-{seconds} seconds')"
    return f"now() - interval '{seconds} seconds'"


def test_a_database_tells_the_time_left_by_the_trials_that_ended(url: str) -> None:
    """Each of 100 steps took 200 seconds; trial 2 has trained for 50 of them, and 97 trials have no lane."""
    with controlled(url) as study:
        study.set_state("running")
        study.start([make_trial(0), make_trial(1), make_trial(2)], "w")
        study.record([make_report(number, 100) for number in (0, 1)])
        with open_reader(url) as reader:
            assert read_status(reader, "study").eta_seconds is None, "no trial has ended"
        study.end([TrialResult(number=number, fence=1, state="finished", objective=0.5) for number in (0, 1)])
        raw(url, f"UPDATE trials SET started_at = {ago(url, 250)}, finished_at = {ago(url, 50)} WHERE number < 2")
        raw(url, f"UPDATE trials SET started_at = {ago(url, 50)} WHERE number = 2")
        with open_reader(url) as reader:
            status = read_status(reader, "study")
    left = status.progress.time_left
    assert left is not None
    assert left.least == pytest.approx(150 + 97 * 200, abs=60)
    assert left.most == pytest.approx(left.least, rel=1e-6), "a single lane has no order to choose"
    assert status.eta_seconds == pytest.approx(left.least)


def test_a_transfer_in_a_database_has_no_time_left_before_stage_two(url: str) -> None:
    with controlled(url) as study:
        study.set_state("running")
        study.start([replace(make_trial(number), params={"transfer.task": "add"}) for number in (0, 1)], "w")
        study.record([make_report(0, 100)], [TrialResult(number=0, fence=1, state="finished", objective=0.5)])
        raw(url, f"UPDATE trials SET started_at = {ago(url, 100)} WHERE number < 2")
        with open_reader(url) as reader:
            assert read_status(reader, "study").progress.time_left is None
        study.start([replace(make_trial(2), params={"transfer.target": "add"})], "w")
        with open_reader(url) as reader:
            assert read_status(reader, "study").progress.time_left is not None
