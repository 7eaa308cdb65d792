"""Which study fills free lanes: offers of workers cut to what each study may fill, as trials end and studies come."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from graft.serving.lanes import LaneShares
from spaces.records import Directives, Offer, Progress, Trial, TrialStart
from storage import QueueEntry

pytestmark = pytest.mark.fast

WORKERS, WIDTH = 2, 16


def entry(study: int, **terms: object) -> QueueEntry:
    values = {"owner": "ann", "priority": 0, "weight": 1.0, "max_lanes": None, "trials": 10_000} | terms
    return QueueEntry(
        study_id=study, study=f"s{study}", state="running", reason="", lanes=0, share=0.0, seed=0,
        submitted_at=datetime.now(UTC), started_at=None, ended_at=None, **values,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


class Simulation:
    """Workers of several studies, each with a pack of each study, and trials that end by chance."""

    def __init__(self, owner_lanes: int | None = None) -> None:
        self.shares = LaneShares(WORKERS * WIDTH, owner_lanes)
        self._packs: dict[tuple[int, int], list[int]] = {}
        """(study, worker) -> the numbers of its trials."""
        self._left: dict[int, int] = {}
        self._most: dict[int, int] = {}
        """Study -> trials that it can give at a time."""
        self._chance = random.Random(5)

    def add(self, one: QueueEntry, most: int = 10_000) -> None:
        self.shares.add(one)
        self._left[one.study_id], self._most[one.study_id] = one.trials, most
        self._packs |= {(one.study_id, worker): [] for worker in range(WORKERS)}

    def step(self, ending: float = 0.3) -> None:
        """Trials end, and every worker exchanges once, in any order."""
        for study, worker in sorted(self._packs, key=lambda _: self._chance.random()):
            pack = self._packs[study, worker]
            kept = [number for number in pack if self._chance.random() > ending]
            ended = len(pack) - len(kept)
            holds = tuple(TrialStart(number, 1) for number in kept)
            structure = "s" if kept else None
            offer = Offer(worker=f"{study}-{worker}", lanes=WIDTH - len(kept), structure=structure, holds=holds)
            allowed = self.shares.allow(study, offer)
            self._left[study] -= ended
            waiting = self._left[study] - self.lanes(study) + ended
            given = min(allowed, waiting, self._most[study] - self.lanes(study) + ended)
            started = [self._chance.randrange(10**9) for _ in range(max(0, given))]
            directives = Directives(start=tuple(trial(number) for number in started))
            self.shares.note(study, replace(offer, lanes=allowed), directives, progress(self._left[study]))
            self._packs[study, worker] = kept + started

    def lanes(self, study: int) -> int:
        return sum(len(pack) for (one, _), pack in self._packs.items() if one == study)


def trial(number: int) -> Trial:
    return Trial(number=number, group=0, seed=0, draws={}, params={}, config={}, structure="s")


def progress(left: int) -> Progress:
    return Progress(
        planned=left, counts={}, objective="", best=None, best_number=None, steps=0, model_steps=0, lane_room=0
    )


def test_a_study_alone_has_all_lanes_and_gives_up_those_that_another_is_due():
    pool = Simulation()
    pool.add(entry(1))
    pool.step()
    assert pool.lanes(1) == WORKERS * WIDTH
    pool.add(entry(2, weight=3.0))
    pool.step(ending=0.0)
    assert (pool.lanes(1), pool.lanes(2)) == (32, 24)  # no lane is taken away, and the one that comes has its share
    for _ in range(50):
        pool.step()
    assert (pool.lanes(1), pool.lanes(2)) == (8, 24)


def test_a_study_that_is_alone_has_no_more_than_it_may():
    pool = Simulation()
    pool.add(entry(1, max_lanes=4))
    pool.step()
    assert pool.lanes(1) == 4


def test_what_a_study_cannot_use_goes_to_the_others():
    pool = Simulation()
    pool.add(entry(1), most=3)  # as where the next trials wait for the results of these
    pool.add(entry(2))
    pool.add(entry(3, trials=5))
    for _ in range(100):
        pool.step(ending=0.0)
    assert (pool.lanes(1), pool.lanes(3)) == (3, 5)
    assert WORKERS * WIDTH - 10 <= pool.lanes(2) <= WORKERS * WIDTH - 8  # a lane for each that may find more to do


def test_limits_of_studies_owners_and_classes():
    pool = Simulation(owner_lanes=12)
    pool.add(entry(1, max_lanes=4))
    pool.add(entry(2))
    pool.add(entry(3, owner="bo"))
    pool.add(entry(4, owner="cy", priority=-1))
    for _ in range(50):
        pool.step()
        assert pool.lanes(1) <= 4
        assert pool.lanes(1) + pool.lanes(2) <= 12
    assert [pool.lanes(study) for study in (1, 2, 3, 4)] == [4, 8, 12, 8]
    reasons = [standing.reason for study in (1, 2, 4) if (standing := pool.shares.standing(study))]
    assert reasons == [
        "has the lanes that it may have at most",
        "its owner has the lanes that a person may have at most",
        "shares the lanes with other studies",
    ]
    pool.shares.update(entry(4, owner="cy", priority=1))
    for _ in range(50):
        pool.step()
    assert [pool.lanes(study) for study in (1, 2, 3, 4)] == [4, 8, 8, 12]


def test_a_lower_class_waits_and_says_why():
    pool = Simulation()
    pool.add(entry(1, priority=1))
    pool.add(entry(2))
    for _ in range(20):
        pool.step()
    standing = pool.shares.standing(2)
    assert standing
    assert (standing.lanes, standing.reason) == (0, "waits for lanes: studies of a higher class have them all")
    assert pool.shares.part(2) == 1.0
    pool.shares.remove(1)
    assert pool.shares.standing(1) is None
