"""A worker whose controller does not answer for a while, or has given its trials to others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

import workers.pool.exchanger
import workers.pool.heartbeat
import workers.pool.worker
from spaces.records import Directives, Offer, Report, TrialStart
from tests.support.trials import config, trial
from tests.support.worker import FakeController
from workers.pool.exchanger import Exchanger
from workers.pool.heartbeat import SELF_STOP_SECONDS, Heartbeat
from workers.pool.worker import Worker

pytestmark = pytest.mark.fast


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Lease:
    """Answers renewals, and counts them."""

    mine: bool = True
    asked: int = 0

    def renew(self) -> bool:
        self.asked += 1
        return self.mine


def test_a_pulse_asks_before_it_lets_anyone_train_on_an_old_renewal():
    clock, lease = Clock(), Lease()
    heartbeat = Heartbeat(lease.renew, clock)
    clock.now = SELF_STOP_SECONDS
    assert heartbeat.alive()
    assert lease.asked == 0
    clock.now += 0.1
    assert heartbeat.alive()
    assert lease.asked == 1
    clock.now += SELF_STOP_SECONDS
    assert heartbeat.alive()
    assert lease.asked == 1
    clock.now += 0.1
    lease.mine = False
    assert not heartbeat.alive()


def test_a_lease_that_is_lost_stays_lost():
    lease = Lease(mine=False)
    heartbeat = Heartbeat(lease.renew, Clock())
    heartbeat.beat()
    lease.mine = True
    heartbeat.beat()
    assert not heartbeat.alive()
    assert lease.asked == 1


def test_a_renewal_counts_from_when_it_was_sent_and_not_from_when_it_was_answered():
    clock, asked = Clock(), list[float]()

    def slow() -> bool:
        asked.append(clock.now)
        clock.now += 40
        return True

    heartbeat = Heartbeat(slow, clock)
    heartbeat.beat()
    clock.now += 6  # 46 seconds after it was sent
    assert heartbeat.alive()
    assert asked == [0, 46]


def test_a_pulse_beats_while_its_worker_is_in_one_long_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers.pool.heartbeat, "BEAT_SECONDS", 0.01)
    beaten = threading.Event()
    lease = Lease()

    def renew() -> bool:
        if lease.asked == 3:
            beaten.set()
        return lease.renew()

    with Heartbeat(renew):
        assert beaten.wait(240), "the thread that waits here trains nothing and asks nothing"


def test_what_an_exchange_raises_is_raised_where_its_answer_is_taken():
    def broken(reports: Sequence[Report], offer: Offer) -> Directives:
        raise RuntimeError("disk on fire")

    with Exchanger(broken) as exchanger:
        exchanger.send([], Offer(worker="w", lanes=0))
        with pytest.raises(RuntimeError, match="disk on fire"):
            exchanger.answer(30)


class Absent(FakeController):
    """Does not answer its second exchange until the worker has trained on for a while."""

    def __init__(self, numbers: range, steps: int) -> None:
        super().__init__([trial(number, config(steps=steps, every=5)) for number in numbers])
        self.back = threading.Event()
        self.calls = 0
        self.journal: list[Report] = []
        """What was said while nobody answered."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.calls += 1
        if self.calls == 2:
            assert self.back.wait(240)
        if self.calls == 3:
            self.journal = list(reports)
        assert {start.number for start in offer.holds} <= self.running
        return super().exchange(reports, offer)


def reported(controller: FakeController) -> list[tuple[int, int]]:
    return [(report.number, report.step) for report in controller.reports]


def test_training_goes_on_while_nobody_answers_and_every_report_arrives_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers.pool.worker, "EXCHANGE_SECONDS", 0.01)
    controller, plain = (
        Absent(range(6), steps=40),
        FakeController([trial(n, config(steps=40, every=5)) for n in range(6)]),
    )
    worker = Worker(name="w", exchange=controller.exchange, width=3, wait_for_work=pytest.fail)
    trained: list[int] = []

    def watched() -> list[Report]:
        reports = type(worker)._train(worker)
        trained.extend(report.step for report in reports)
        if max(trained, default=0) == 40:
            controller.back.set()  # all three lanes are through, and nobody has heard of it
        return reports

    monkeypatch.setattr(worker, "_train", watched)
    assert worker.run()
    assert Worker(name="w", exchange=plain.exchange, width=3, wait_for_work=pytest.fail).run()
    assert len(controller.offers) < len(plain.offers)
    assert (
        sorted(reported(controller)) == sorted(reported(plain)) == [(n, s) for n in range(6) for s in range(5, 45, 5)]
    )
    assert {(r.number, r.step): r for r in controller.reports} == {(r.number, r.step): r for r in plain.reports}
    assert sum(offer.steps for offer in controller.offers) == 6 * 40


@pytest.mark.long
def test_a_full_journal_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers.pool.worker, "EXCHANGE_SECONDS", 0.01)
    monkeypatch.setattr(workers.pool.worker, "MAX_JOURNAL_NUMBERS", 12)
    controller = Absent(range(2), steps=400)
    worker = Worker(name="w", exchange=controller.exchange, width=2, wait_for_work=pytest.fail)
    threading.Timer(1.0, controller.back.set).start()
    assert worker.run()
    assert workers.pool.exchanger.numbers_in(controller.journal) < 12 + 2 * numbers_of(controller.reports[0])
    assert sorted(reported(controller)) == [(n, s) for n in range(2) for s in range(5, 405, 5)]


def numbers_of(report: Report) -> int:
    return workers.pool.exchanger.numbers_in([report])


@dataclass
class Sequel:
    """Hands out trials, and takes the lease away at one of the exchanges, or with a renewal."""

    inner: FakeController
    told: bool
    """By the answer to an exchange; else by the heartbeat."""
    lost: bool = False
    offers: list[Offer] = field(default_factory=list[Offer])

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.offers.append(offer)
        if len(self.offers) == 3:
            self.lost = True
            if self.told:
                return Directives(lease_lost=True)
        return self.inner.exchange(reports, offer)

    def renew(self) -> bool:
        return not self.lost


@pytest.mark.parametrize("by_answer", [True, False])
def test_a_worker_whose_lease_ran_out_drops_everything_and_says_so(by_answer: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers.pool.heartbeat, "BEAT_SECONDS", 0.01)
    sequel = Sequel(FakeController([trial(0, config(steps=10_000_000, every=5))]), by_answer)
    worker = Worker(name="w", exchange=sequel.exchange, renew=sequel.renew, width=2, wait_for_work=pytest.fail)
    assert not worker.run()
    assert worker.lanes is None
    assert sequel.offers[-1].holds == (TrialStart(0, 0),)


def test_a_worker_goes_on_with_what_it_still_holds(monkeypatch: pytest.MonkeyPatch):
    """One lane of three is another's now: its neighbours do not notice."""
    controller = FakeController([trial(n, config(steps=40, every=5)) for n in range(3)])
    controller.stop_at[1] = 20
    alone = FakeController([trial(n, config(steps=40, every=5)) for n in range(3)])
    for source in (controller, alone):
        assert Worker(name="w", exchange=source.exchange, width=3, wait_for_work=pytest.fail).run()
    expected = {(r.number, r.step): r for r in alone.reports if r.number != 1 or r.step <= 20}
    assert {(r.number, r.step): r for r in controller.reports} == expected
