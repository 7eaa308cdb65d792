"""Which study fills free lanes: offers of workers cut to what each study may fill, as trials end and studies come."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from graft.serving.lanes import LaneShares
from graft.serving.running import SharedController
from search.steering.controller import Controller
from spaces.progress import Progress
from spaces.records import Directives, Offer, Trial, TrialStart
from storage import QueueEntry
from tests.support.controller import FakeWorker, Rows
from tests.support.search_spaces import PLAIN, space

pytestmark = pytest.mark.fast

WORKERS, WIDTH = 2, 16


def entry(study: int, **terms: object) -> QueueEntry:
    values = {"owner": "ann", "priority": 0, "weight": 1.0, "max_lanes": None, "trials": 100_000} | terms
    return QueueEntry(
        study_id=study, study=f"s{study}", state="running", reason="", lanes=0, share=0.0, seed=0,
        submitted_at=datetime.now(UTC), started_at=None, ended_at=None, **values,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


class Simulation:
    """Workers of several studies, all of whose lanes in a slot are in one pack, and trials that end by chance."""

    def __init__(self, owner_lanes: int | None = None, width: int = WIDTH) -> None:
        self.now = 0.0
        self.shares = LaneShares(range(WORKERS), width, owner_lanes, lambda: self.now)
        self.spent = Counter[int]()
        """Study -> its part of the slots' time."""
        self._width = width
        self._packs: dict[tuple[int, int], list[int]] = {}
        """(study, slot) -> the numbers of its trials."""
        self._left: dict[int, int] = {}
        self._most: dict[int, int] = {}
        """Study -> trials that it can give at a time."""
        self._chance = random.Random(5)

    def add(self, submission: QueueEntry, most: int = 100_000) -> None:
        self.shares.add(submission)
        self._left[submission.study_id], self._most[submission.study_id] = submission.trials, most
        self._packs |= {(submission.study_id, slot): [] for slot in range(WORKERS)}

    def step(self, ending: float = 0.3, slots: Sequence[int] = range(WORKERS)) -> None:
        """Let a second pass: slots train at one speed, trials end, and workers exchange once, in any order."""
        for (study, slot), pack in self._packs.items():
            self.spent[study] += len(pack) / max(1, self.load(slot))
        self.now += 1.0
        pairs = [pair for pair in sorted(self._packs, key=lambda _: self._chance.random()) if pair[1] in slots]
        for study, slot in pairs:
            pack = self._packs[study, slot]
            kept = [number for number in pack if self._chance.random() > ending]
            ended = len(pack) - len(kept)
            holds = tuple(TrialStart(number, 1) for number in kept)
            structure = "s" if kept else None
            lanes = self._width - len(kept)
            offer = Offer(worker=f"inline-{slot}-{study}", lanes=lanes, structure=structure, holds=holds)
            allowed = self.shares.allow(study, offer)
            self._left[study] -= ended
            waiting = self._left[study] - self.lanes(study) + ended
            given = min(allowed, waiting, self._most[study] - self.lanes(study) + ended)
            started = [self._chance.randrange(10**9) for _ in range(max(0, given))]
            directives = Directives(start=tuple(trial(number) for number in started))
            self.shares.note(study, replace(offer, lanes=allowed), directives, progress(self._left[study]))
            self._packs[study, slot] = kept + started

    def lanes(self, study: int) -> int:
        return sum(len(pack) for (pack_study, _), pack in self._packs.items() if pack_study == study)

    def load(self, slot: int) -> int:
        return sum(len(pack) for (_, pack_slot), pack in self._packs.items() if pack_slot == slot)


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


def test_an_owner_has_never_more_lanes_than_allowed():
    pool = Simulation(owner_lanes=7)
    for study in range(4):
        pool.add(entry(study))
    pool.add(entry(4, owner="bo"))
    for _ in range(100):
        pool.step()
        assert sum(pool.lanes(study) for study in range(4)) <= 7
    assert all(pool.spent[study] for study in range(4))


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


def test_lanes_of_stopped_trials_are_refilled_only_within_the_share_of_their_study():
    shares = LaneShares([0], 8)
    shares.add(entry(1))
    controller = Controller.begin(space(PLAIN, stopping="{asha: {min_steps: 10, eta: 2}}"), Rows())
    study, worker = SharedController(controller, 1, shares), FakeWorker("inline-0-1", 8)
    worker.obey(study.exchange([], worker.offer()))
    said = study.exchange(worker.train([*worker.lanes]), worker.offer())
    assert len(said.start) == len(said.stop) > 0, "alone it has all lanes"
    worker.obey(said)
    shares.add(entry(2, priority=1))
    said = study.exchange(worker.train([*worker.lanes]), worker.offer())
    assert len(said.stop) > len(said.start) == 0


@pytest.mark.parametrize(
    ("weights", "width"),
    [((1, 2, 3), WIDTH), ((1, 2, 3), 4), ((1, 2, 1, 3, 1, 2), WIDTH)],
    ids=["three", "three on few lanes", "six"],
)
def test_what_studies_train_comes_near_their_weights_where_shares_are_parts_of_lanes(
    weights: Sequence[int], width: int
):
    pool = Simulation(width=width)
    for study, weight in enumerate(weights):
        pool.add(entry(study, weight=float(weight)))
        pool.step()
    pool.spent.clear()
    for _ in range(400):
        pool.step(ending=0.1)
    assert pool.spent.total() == pytest.approx(400 * WORKERS, rel=0.1)
    for study, weight in enumerate(weights):
        assert pool.spent[study] / pool.spent.total() == pytest.approx(weight / sum(weights), rel=0.1)


def test_a_long_excess_that_nobody_rounded_is_not_paid_back():
    pool = Simulation()
    pool.add(entry(1))
    pool.step()
    pool.add(entry(2, weight=1.01))
    for _ in range(1000):  # no lane is taken away from the one that was there before
        pool.step(ending=0.0)
    assert pool.lanes(1) == 32
    for _ in range(20):
        pool.step(ending=0.5)
    lanes: list[int] = []
    for _ in range(100):
        pool.step(ending=0.5)
        lanes.append(pool.lanes(1))
    assert set(lanes) == {15, 16}
    assert sum(lanes) / 100 == pytest.approx(32 / 2.01, abs=0.1)


def test_lanes_are_spread_over_the_slots_whoever_asks_first():
    pool = Simulation()
    for study in range(6):
        pool.add(entry(study))
    for _ in range(30):
        pool.step(slots=[0])
    pool.step(ending=0.0)
    for _ in range(30):
        assert abs(pool.load(0) - pool.load(1)) <= 3
        pool.step()
    assert pool.load(0) + pool.load(1) == pytest.approx(32, abs=6)


def test_a_slot_that_can_take_no_more_leaves_its_lanes_to_the_others():
    """As where memory has run out, or what waits has another structure than what trains there."""
    pool = Simulation()
    pool.add(entry(1, max_lanes=8))
    kept = (TrialStart(0, 1),)
    full, empty = Offer(worker="inline-1-1", lanes=15, structure="s", holds=kept), Offer(worker="inline-0-1", lanes=16)
    assert pool.shares.allow(1, empty) == 4
    assert pool.shares.allow(1, full) == 3
    pool.shares.note(1, replace(full, lanes=3), Directives(), progress(100))
    assert pool.shares.allow(1, empty) == 7


def test_a_slot_that_has_lost_its_worker_leaves_its_lanes_to_the_others():
    shares = LaneShares(range(2), WIDTH)
    shares.add(entry(1))
    shares.add(entry(2, max_lanes=2))
    holds = tuple(TrialStart(number, 1) for number in range(14))
    shares.allow(1, Offer(worker="w-0-1", lanes=2, structure="s", holds=holds))
    offered(shares, 2, 1, WIDTH)
    shares.lose(2, "w-1-2")
    assert offered(shares, 2, 0, WIDTH) == 2
    assert offered(shares, 2, 1, WIDTH) == 2, "another worker follows"


def test_lanes_of_slots_that_leave_go_and_those_of_slots_that_join_are_shared_out():
    shares = LaneShares(range(2), WIDTH)
    for study in (1, 2):
        shares.add(entry(study))
    assert [offered(shares, study, slot, WIDTH) for study in (1, 2) for slot in (0, 1)] == [8, 8, 8, 8]
    shares.use_slots([0])
    assert shares.lanes == WIDTH
    assert offered(shares, 1, 0, WIDTH) == 8
    shares.use_slots([0, 3])
    assert [offered(shares, study, 3, WIDTH) for study in (1, 2)] == [8, 8]
    shares.use_slots([])
    assert offered(shares, 1, 3, WIDTH) == 0, "the offer of a worker whose device has just left"
    standing = shares.standing(1)
    assert standing
    assert (standing.share, standing.reason) == (0, "waits for a device: the cluster has none now")


def offered(shares: LaneShares, study: int, slot: int, lanes: int) -> int:
    """Lanes that an empty worker of a study may fill."""
    return shares.allow(study, Offer(
        worker=f"w-{slot}-{study}", lanes=lanes, structure=None, host="here", device="cpu", steps=0, room=0
    ))  # fmt: skip
