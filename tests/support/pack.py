"""Random trials, alone and packed, and how their reports are compared."""

from __future__ import annotations

import math
import random

from spaces.records import Report, Trial
from tests.support.trials import config, random_knobs, trial
from workers.engine.pack import Pack

TOLERANCE = 1e-10


def reports_of(pack: Pack, waiting: list[Trial] | None = None) -> dict[tuple[int, int], Report]:
    """Train to the end, filling freed lanes from `waiting`; reports by (number, step)."""
    queue, seen = list(waiting or []), {}
    while pack.running:
        for report in pack.train(1000):
            seen[report.number, report.step] = report
        pack.fill([queue.pop(0) for _ in range(min(pack.free, len(queue)))])
    return seen


def alone(member: Trial) -> dict[tuple[int, int], Report]:
    pack = Pack(member, width=1)
    pack.fill([member])
    return reports_of(pack)


def assert_same(reports: dict[tuple[int, int], Report], expected: dict[tuple[int, int], Report]) -> None:
    assert reports.keys() == expected.keys()
    for key, report in expected.items():
        assert reports[key].state == report.state
        assert [m[:3] for m in reports[key].metrics] == [m[:3] for m in report.metrics]
        for metric, other in zip(reports[key].metrics, report.metrics, strict=True):
            assert math.isclose(metric.value, other.value, rel_tol=TOLERANCE, abs_tol=TOLERANCE), (key, metric, other)


def assert_equal_to_the_bit(trials: list[Trial]) -> None:
    """Three lanes at a time, refilled, against each trial alone."""
    pack = Pack(trials[0], width=3)
    pack.fill(trials[:3])
    together = reports_of(pack, waiting=trials[3:])
    for member in trials:
        for key, report in alone(member).items():
            assert together[key] == report


def random_trials(count: int, seed: int, *, dropout: bool = True, steps: int = 30) -> list[Trial]:
    numbers = random.Random(seed)
    return [trial(i, config(steps=steps, **random_knobs(numbers, dropout=dropout))) for i in range(count)]
