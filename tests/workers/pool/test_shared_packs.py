"""Lanes of several studies in one pack: each study's numbers, reports and counts are those that it has alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spaces.records import Directives, Offer, Report, Trial
from tests.support.pack import alone, random_trials
from tests.support.trials import config, replace_step, trial
from tests.support.widths import FULL, Cramped, RequeueingController
from tests.support.worker import FakeController
from workers.engine.checkpoints import Archive
from workers.engine.pack import Pack
from workers.engine.step import step_of
from workers.pool.shared_packs import SharedPacks, StudyDevice
from workers.pool.turns import Turns
from workers.pool.worker import Worker

pytestmark = pytest.mark.fast

Reports = dict[tuple[int, int], Report]


def expected(trials: Sequence[Trial]) -> Reports:
    """Return what each trial reports alone."""
    return {key: report for candidate in trials for key, report in alone(candidate).items()}


def two_studies(count: int, steps: int = 30) -> tuple[list[Trial], list[Trial]]:
    """Trials of the same numbers and structure, other seeds and knobs."""
    first, second = random_trials(count, seed=1, steps=steps), random_trials(count, seed=2, steps=steps)
    return first, [replace(candidate, seed=candidate.seed + 5) for candidate in second]


# -- the engine --------------------------------------------------------------------------------------------------------


def test_a_pack_keeps_trials_of_equal_numbers_apart(tmp_path: Path):
    mine, yours = two_studies(3)
    pack = Pack(mine[0], width=6)
    pack.fill(mine[:2], 1)
    pack.fill(yours, 2)
    reports: dict[int, Reports] = {1: {}, 2: {}}

    def train(steps: int) -> None:
        for study, report in pack.train_studies(steps):
            reports[study][report.number, report.step] = report

    train(7)
    snapshot = pack.snapshot(2)
    assert snapshot
    assert [saved.number for saved in snapshot.trials] == [0, 1, 2]
    checkpoints = Archive(str(tmp_path), "yours").write("w", snapshot)
    pack.release([0, 1], 1)
    assert not pack.trials_of(1)
    pack.release([0], 2)
    assert [lane.number for lane in pack.trials_of(2)] == [1, 2]
    pack.fill(mine, 1)
    pack.fill([replace(yours[0], checkpoints=checkpoints[:1])], 2, Archive(str(tmp_path), "yours"))
    assert [lane.step for lane in pack.trials_of(2)] == [7, 7, 7]
    train(1)
    other = pack.split_off(2)
    assert {lane.number for lane in other.trials_of(2)} == {0, 1, 2}
    assert not pack.trials_of(2)
    for part in (pack, other):
        while part.width - part.free:
            for study, report in part.train_studies(1000):
                reports[study][report.number, report.step] = report
    assert reports == {1: expected(mine), 2: expected(yours)}


def test_lanes_that_leave_a_pack_keep_the_kind_of_their_step_though_they_are_few(monkeypatch: pytest.MonkeyPatch):
    def choose(recipe: Any, structure: str, device: Any, lanes: int) -> Any:
        step: Any = step_of(recipe, structure, device, lanes)
        step.kind = "fused" if lanes >= 4 else "traced"
        return step

    monkeypatch.setattr("workers.engine.pack.step_of", choose)
    mine, yours = two_studies(3)
    pack = Pack(mine[0], width=6)
    pack.fill(mine, 1)
    pack.fill(yours, 2)
    pack.train(10)
    other = pack.split_off(2)
    assert other.width == 3
    assert other._step.kind == "fused"  # pyright: ignore[reportPrivateUsage]
    reports = [report for _, report in other.train_studies(10)]
    assert {report.fingerprint and report.fingerprint.step_kind for report in reports} == {"fused"}


def test_the_room_of_a_pack_is_that_of_its_studies_together():
    mine, yours = two_studies(3)
    pack = Pack(mine[0], width=7)
    pack.fill(mine[:1], 1)
    pack.fill(yours, 2)
    pack.train(10)
    (own_steps, own_room), (steps, room) = pack.take_counts(1), pack.take_counts(2)
    assert (own_steps, steps) == (10, 30)
    assert own_room + room == 70
    assert own_room == 70 // 4
    assert pack.take_counts(1) == (0, 0)


def test_an_empty_worker_says_what_its_device_trains_for_others():
    mine, _ = two_studies(2)
    packs: SharedPacks = []
    lanes = StudyDevice(study=1, packs=packs).open(Pack(mine[0], width=2), None)
    lanes.fill(mine)
    empty = Worker(
        name="w", exchange=FakeController([]).exchange, width=4, study_device=StudyDevice(study=2, packs=packs)
    )
    assert empty._offer([], saves=False).common == (mine[0].structure,)  # pyright: ignore[reportPrivateUsage]
    assert StudyDevice(study=2, packs=packs, group=lambda: "other").structures == ()
    assert lanes.users() == {1: 2}
    lanes.part(is_open=False)
    assert StudyDevice(study=2, packs=packs).structures == ()


# -- workers -----------------------------------------------------------------------------------------------------------


@dataclass
class Study:
    """A study's controller and worker, in a thread, on a device that it shares."""

    number: int
    controller: FakeController
    packs: SharedPacks
    turns: Turns
    group: Callable[[], object] = lambda: None
    archive: Archive | None = None
    loses_lanes: bool = False
    """Whether memory runs out, so that it does not hold all that it was given."""
    offers: list[Offer] = field(default_factory=list[Offer])
    error: BaseException | None = None
    is_done: bool | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.offers.append(offer)
        held = {start.number for start in offer.holds}
        ended = {report.number for report in reports if report.state != "running"}
        assert not held & ended
        assert held | ended == self.controller.running or self.loses_lanes, "a trial was lost"
        return self.controller.exchange(reports, offer)

    def run(self) -> None:
        turns = self.turns.of(0, self.number, lambda: 1.0)
        share = StudyDevice(study=self.number, turns=turns, packs=self.packs, group=self.group)
        name = f"w{self.number}"
        worker = Worker(name=name, exchange=self.exchange, width=4, study_device=share, archive=self.archive)
        try:
            self.is_done = worker.run()
        except BaseException as error:
            self.error = error

    @property
    def reports(self) -> Reports:
        return {(report.number, report.step): report for report in self.controller.reports}


@dataclass
class Bench:
    """Studies that share a device."""

    packs: SharedPacks = field(default_factory=list[Any])
    turns: Turns = field(default_factory=Turns)
    companies: set[frozenset[int]] = field(default_factory=set[frozenset[int]])
    """The studies that had lanes in a pack together as it was trained."""

    def study(self, number: int, trials: list[Trial], **settings: Any) -> Study:
        kind = RequeueingController if settings.get("loses_lanes") else FakeController
        return Study(number, kind(trials), self.packs, self.turns, **settings)

    def run(self, monkeypatch: pytest.MonkeyPatch, *studies: Study) -> None:
        """Run them all to their ends; the first steps wait until each has lanes."""
        train, together = Pack.train_studies, threading.Event()

        def watched(pack: Pack, most: int) -> list[tuple[int, Report]]:
            held = {study for shared in self.packs for study in shared.members}
            if together.is_set() or len(held) == len(studies):
                together.set()
                self.companies.add(frozenset(lane.study for lane in pack.lanes if lane))
                return train(pack, most)
            return []

        with monkeypatch.context() as patch:
            patch.setattr(Pack, "train_studies", watched)
            threads = [threading.Thread(target=study.run, daemon=True) for study in studies]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(240)
        assert not self.packs, "each pack goes with the last of its studies"


def test_studies_of_one_structure_share_packs_and_have_the_numbers_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    mine, yours = two_studies(9)
    others = [trial(number, config(steps=30, width=14)) for number in range(5)]
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours]), bench.study(3, [*others])]
    bench.run(monkeypatch, *studies)
    assert [study.is_done for study in studies] == [True] * 3
    assert [study.reports for study in studies] == [expected(mine), expected(yours), expected(others)]
    assert frozenset({1, 2}) in bench.companies
    assert not [company for company in bench.companies if 3 in company and len(company) > 1]
    for study, trials in zip(studies, (mine, yours, others), strict=True):
        assert sum(offer.steps for offer in study.offers) == 30 * len(trials)
        assert sum(offer.room for offer in study.offers) >= 30 * len(trials)


def test_studies_of_other_groups_have_packs_of_their_own(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(5)
    bench = Bench()
    studies = [bench.study(1, [*mine], group=lambda: "low"), bench.study(2, [*yours], group=lambda: "high")]
    bench.run(monkeypatch, *studies)
    assert [study.reports for study in studies] == [expected(mine), expected(yours)]
    assert frozenset({1, 2}) not in bench.companies


@pytest.mark.long
def test_a_study_whose_group_changes_leaves_with_its_lanes_as_they_are(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(5, steps=60)
    bench = Bench()
    is_urgent = threading.Event()
    before = set[frozenset[int]]()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours], group=is_urgent.is_set)]
    studies[0].group = lambda: False
    exchange = studies[1].controller.exchange

    def become_urgent(reports: Sequence[Report], offer: Offer) -> Directives:
        if is_urgent.is_set() and not before:  # what it was told last is done: it has left, in mid-training
            assert any(30 <= report.step < 60 for report in reports)
            before.update(bench.companies)
            bench.companies.clear()
        if any(report.step == 20 for report in reports) and not is_urgent.is_set():
            is_urgent.set()
            assert bench.companies == {frozenset({1, 2})}
            assert offer.holds, "which it is to keep"
        return exchange(reports, offer)

    monkeypatch.setattr(studies[1].controller, "exchange", become_urgent)
    bench.run(monkeypatch, *studies)
    assert [study.reports for study in studies] == [expected(mine), expected(yours)]
    assert frozenset({1, 2}) in before
    assert bench.companies == {frozenset({1}), frozenset({2})}


def test_a_lease_that_is_lost_frees_the_lanes_of_its_study_alone(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(8)
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]
    exchange = studies[0].controller.exchange

    def lose(reports: Sequence[Report], offer: Offer) -> Directives:
        return exchange(reports, offer) if not reports else Directives(lease_lost=True)

    monkeypatch.setattr(studies[0].controller, "exchange", lose)
    bench.run(monkeypatch, *studies)
    assert [study.is_done for study in studies] == [False, True]
    assert studies[1].reports == expected(yours)
    assert frozenset({1, 2}) in bench.companies


def test_a_study_that_is_dismissed_leaves_the_others(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(8)
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]
    exchange = studies[0].controller.exchange

    def dismiss(reports: Sequence[Report], offer: Offer) -> Directives:
        if reports:
            return Directives(stop=tuple(start.number for start in offer.holds), done=True)
        return exchange(reports, offer)

    monkeypatch.setattr(studies[0].controller, "exchange", dismiss)
    bench.run(monkeypatch, *studies)
    assert [study.is_done for study in studies] == [True, True]
    assert studies[1].reports == expected(yours)


def test_a_step_that_one_study_breaks_ends_that_study_alone(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(4)
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]
    bad = mine[2].seed
    make = Pack._make_step  # pyright: ignore[reportPrivateUsage]

    def make_breaking_step(pack: Pack) -> None:
        make(pack)
        step = pack._step  # pyright: ignore[reportPrivateUsage]

        def break_at_ten(knobs: Any, seeds: Any, state: Any, *others: Any) -> Any:
            busy = {lane.number for lane in pack.trials_of(1)}
            if 2 in busy and bool(((seeds == bad) & (state.step == 10)).any()):
                raise ValueError("a plug-in of study 1")
            return step(knobs, seeds, state, *others)  # type: ignore[operator]

        replace_step(pack, break_at_ten)

    monkeypatch.setattr(Pack, "_make_step", make_breaking_step)
    bench.run(monkeypatch, *studies)
    monkeypatch.undo()
    assert str(studies[0].error) == "a plug-in of study 1"
    assert (studies[1].is_done, studies[1].error) == (True, None)
    assert studies[1].reports == expected(yours)
    assert {frozenset({1, 2}), frozenset({1}), frozenset({2})} <= bench.companies


def test_a_trial_that_diverges_is_one_of_its_own_study(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(3)
    mine[1].config["optimizer"]["learning_rate"] = 1e30
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]
    bench.run(monkeypatch, *studies)
    states = [{report.number: report.state for report in study.controller.reports} for study in studies]
    assert states == [{0: "finished", 1: "diverged", 2: "finished"}, dict.fromkeys(range(3), "finished")]
    assert [study.reports for study in studies] == [expected(mine), expected(yours)]


def test_where_memory_ends_the_lanes_that_are_furthest_go_on_whosever_they_are(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(6)
    bench = Bench()
    studies = [bench.study(1, [*mine], loses_lanes=True), bench.study(2, [*yours], loses_lanes=True)]
    with monkeypatch.context() as patch:
        patch.setattr("workers.pool.worker.Pack", type("Limited", (Cramped,), {"stepping": 5}))
        bench.run(monkeypatch, *studies)
    assert [study.reports for study in studies] == [expected(mine), expected(yours)]
    assert frozenset({1, 2}) in bench.companies
    assert any(any(study.controller.dropped) for study in studies)  # type: ignore[attr-defined]


def test_trials_of_all_studies_fail_that_do_not_even_fit_in_the_narrowest_pack(monkeypatch: pytest.MonkeyPatch):
    mine, yours = two_studies(1)
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]

    def without_room(*arguments: object) -> object:
        raise FULL

    make = Pack._make_step  # pyright: ignore[reportPrivateUsage]
    with monkeypatch.context() as patch:
        patch.setattr(Pack, "_make_step", lambda pack: (make(pack), replace_step(pack, without_room)))
        bench.run(monkeypatch, *studies)
    for study in studies:
        assert [(report.number, report.state) for report in study.controller.reports] == [(0, "failed")]
    assert bench.companies == {frozenset({1, 2})}


@pytest.mark.long
def test_checkpoints_hold_the_trials_of_their_study_at_the_step_of_its_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What a controller notes with a checkpoint is of the reports up to it, while others train the same lanes."""
    offer_of = Worker._offer  # pyright: ignore[reportPrivateUsage]

    def offer_late(self: Worker, reports: list[Report], *, saves: bool) -> Offer:
        """Another worker of the device has trained the lanes up to their next reports since the last look at them."""
        if saves and self.lanes:
            with self.study_device.turns.briefly():
                self.lanes.train(10)
        return offer_of(self, reports, saves=saves)

    monkeypatch.setattr(Worker, "_offer", offer_late)
    mine, yours = two_studies(6, steps=60)
    bench = Bench()
    archives = [Archive(str(tmp_path), name) for name in ("mine", "yours")]
    studies = [
        bench.study(number, [*trials], archive=archive)
        for number, (trials, archive) in enumerate(zip((mine, yours), archives, strict=True), 1)
    ]
    for study in studies:
        exchange = study.controller.exchange
        reached: dict[int, int] = {}

        def save(
            reports: Sequence[Report],
            offer: Offer,
            exchange: Any = exchange,
            reached: dict[int, int] = reached,
            offers: list[Offer] = study.offers,
        ) -> Directives:
            reached |= {report.number: report.step for report in reports}
            for state in offer.saved:
                assert reached.get(state.number, 0) == state.step // 10 * 10, "the last report before the checkpoint"
            return replace(exchange(reports, offer), save=len(offers) % 3 == 0)

        monkeypatch.setattr(study.controller, "exchange", save)
    bench.run(monkeypatch, *studies)
    assert frozenset({1, 2}) in bench.companies
    for study, trials, archive in zip(studies, (mine, yours), archives, strict=True):
        assert study.reports == expected(trials)
        saved = [checkpoint for offer in study.offers for checkpoint in offer.saved]
        assert saved
        for checkpoint in saved[-3:]:
            pack = Pack(trials[0], width=2, archive=archive)
            pack.fill([replace(trials[checkpoint.number], checkpoints=(checkpoint,))])
            [lane] = pack.trials_of(0)
            assert lane.step == checkpoint.step
            [*_, last] = iter(lambda pack=pack: pack.train(1000) if pack.running else None, None)
            assert last == [study.reports[checkpoint.number, 60]]


@pytest.mark.long
def test_lanes_whose_reports_nobody_takes_wait_and_others_train_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.pool.worker.EXCHANGE_SECONDS", 0.01)
    monkeypatch.setattr("workers.pool.worker.MAX_JOURNAL_NUMBERS", 12)
    mine, yours = two_studies(4, steps=400)
    bench = Bench()
    studies = [bench.study(1, [*mine]), bench.study(2, [*yours])]
    exchange = studies[0].controller.exchange
    journals: list[int] = []
    are_done = threading.Event()

    def wait(reports: Sequence[Report], offer: Offer) -> Directives:
        if reports and not are_done.is_set():
            assert are_done.wait(240)
        elif reports:
            journals.append(len(reports))
        return exchange(reports, offer)

    def note(reports: Sequence[Report], offer: Offer, exchange: Any = studies[1].controller.exchange) -> Directives:
        directives = exchange(reports, offer)
        if directives.done:
            are_done.set()
        return directives

    monkeypatch.setattr(studies[0].controller, "exchange", wait)
    monkeypatch.setattr(studies[1].controller, "exchange", note)
    bench.run(monkeypatch, *studies)
    assert [study.reports for study in studies] == [expected(mine), expected(yours)]
    assert {frozenset({1, 2}), frozenset({2})} <= bench.companies
    assert journals[0] <= 24
