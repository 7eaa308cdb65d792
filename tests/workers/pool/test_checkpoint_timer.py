"""When checkpoints are due: the first within seconds, then as often as costs a hundredth of the time."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.pool.checkpoint_timer import LEAST_SECONDS, SHARE, CheckpointTimer

pytestmark = pytest.mark.fast


def simulate(cost: float, seconds: float, most: float = 600.0) -> list[float]:
    """When checkpoints were written in so many seconds of training, of which each takes `cost`."""
    now = [0.0]
    timer, written = CheckpointTimer(most, lambda: now[0]), list[float]()
    while now[0] < seconds:
        timer.note_training()
        now[0] += 0.25
        if timer.is_due():
            written.append(now[0])
            now[0] += cost
            timer.note_checkpoint(cost)
    return written


@pytest.mark.long
@given(cost=st.floats(0, 100))
def test_the_first_comes_within_seconds_and_the_others_cost_a_hundredth_or_come_every_ten_minutes(cost: float):
    written = simulate(cost, 20_000)
    assert written[0] <= LEAST_SECONDS + 0.5
    gaps = [later - earlier for earlier, later in itertools.pairwise(written[1:])]
    assert max(gaps, default=0) <= 600 + cost + 0.5
    if 0.02 < cost < 6:
        assert cost / min(gaps, default=math.inf) <= SHARE
        assert cost / max(gaps, default=0.0) == pytest.approx(SHARE, rel=0.15)


def test_the_interval_is_youngs_optimum_for_a_failure_in_fifty_intervals():
    """By simulation: of intervals around it, none loses less to checkpoints and failures together."""
    cost = 0.5
    interval = cost / SHARE
    chance = random.Random(0)
    failures = [chance.expovariate(SHARE * 2 / interval) for _ in range(20_000)]

    def lost(every: float) -> float:
        done = sum(math.floor(life / (every + cost)) * every for life in failures)
        return 1 - done / sum(failures)

    best = min((lost(interval * factor), factor) for factor in (0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0))
    assert best[1] in (0.85, 1.0, 1.2)
    assert lost(interval) == pytest.approx(2 * SHARE, rel=0.1), "half to checkpoints, half to failures"


def test_the_time_until_it_is_on_record_counts_too():
    now = [0.0]
    timer = CheckpointTimer(600, lambda: now[0])
    timer.note_checkpoint(0.01)
    timer.add_cost(0.5)
    timer.note_training()
    now[0] = 51.9
    assert not timer.is_due()
    now[0] = 52.1
    assert timer.is_due()
    timer.add_cost(1000.0)
    now[0] = 600.1
    assert timer.is_due(), "never later than the most"


def test_without_training_nothing_is_due_and_with_no_archive_never():
    now = [0.0]
    timer = CheckpointTimer(600, lambda: now[0])
    now[0] = 1e6
    assert not timer.is_due()
    assert simulate(0.1, 5000, most=math.inf) == []


def test_whoever_asks_for_more_gets_more():
    written = simulate(1.0, 100, most=5.0)
    assert all(later - earlier < 6.5 for earlier, later in itertools.pairwise(written))
