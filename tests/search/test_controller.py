"""The controller against a fake worker and a fake memory: record, then act; every trial once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from search.objectives import objective_after
from search.samplers import Strategy
from search.steering.controller import Controller
from search.steering.trial_queue import COMMON_LOOK_AHEAD_TRIALS, STRUCTURE_WAIT_TRIALS, TrialQueue
from search.stopping import Monitor
from spaces.errors import StudyError
from spaces.records import (
    TERMINAL,
    Checkpoint,
    Directives,
    Metric,
    Offer,
    Outcome,
    Report,
    Trial,
    TrialStart,
)
from spaces.settings import Direction, Objective
from tests.support.controller import LENGTH, POLICIES, SAMPLERS, FakeWorker, Row, Rows, audit, finish
from tests.support.search_spaces import CONDITIONAL, PLAIN, space

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_trial_of_a_study_is_made_once_and_ends_once(sampler: str) -> None:
    here = space(CONDITIONAL, sampler=sampler, trials=40, group=8)
    memory = Rows()
    finish(Controller.begin(here, memory), FakeWorker("a", 6), FakeWorker("b", 3))
    audit(memory, here)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_workers_of_a_gpu_train_every_trial_and_never_two_packs_of_one_structure(sampler: str) -> None:
    at_once: list[int] = []

    class Beside(FakeWorker):
        def offer(self) -> Offer:
            return replace(super().offer(), is_beside=True)

        def obey(self, directives: Directives) -> None:
            super().obey(directives)
            structures = [next(iter(worker.lanes.values()))[0].structure for worker in workers if worker.lanes]
            assert len({*structures}) == len(structures)
            at_once.append(len(structures))

    workers = [Beside(name, 8) for name in "abcd"]
    here = space(CONDITIONAL, sampler=sampler, trials=40, group=8)
    memory = Rows()
    finish(Controller.begin(here, memory), *workers)
    audit(memory, here)
    assert max(at_once) > 1


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_stopping_policy_prunes_and_nothing_is_lost(policy: str) -> None:
    here = space(CONDITIONAL, trials=60, group=10, stopping=policy)
    memory = Rows()
    finish(Controller.begin(here, memory), FakeWorker("a", 5), FakeWorker("b", 5))
    audit(memory, here)
    assert "pruned" in {row.state for row in memory.rows.values()}


def test_a_grid_ends_when_it_is_exhausted() -> None:
    here = space(PLAIN, sampler="{grid: {points: 2}}", trials=50)
    memory = Rows()
    finish(Controller.begin(here, memory), FakeWorker("a", 3))
    assert len(memory.rows) == 2**3


class Spy(Strategy, Monitor):
    """A sampler and a policy that look into the memory whenever they are told something."""

    def __init__(self, inner: Strategy, memory: Rows) -> None:
        self.inner = inner
        self.memory = memory

    def ask(self, numbers: range) -> list[Trial]:
        return self.inner.ask(numbers)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            row = self.memory.rows[outcome.number]
            assert (row.state, row.objective) == (outcome.state, outcome.objective)

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        for report in reports:
            assert ("report", (report.number, report.step)) in self.memory.log
        return {report.number for report in reports if report.number % 3 == 0}

    def forget(self, number: int) -> None:
        assert self.memory.rows[number].state != "running"

    def state(self, number: int) -> object:
        raise AssertionError("nothing is saved here")

    def restore(self, number: int, group: int, state: object) -> None:
        raise AssertionError("nothing goes on from a checkpoint here")


def test_everything_is_recorded_before_anyone_acts_on_it() -> None:
    here = space(PLAIN, trials=30)
    memory = Rows()
    spy = Spy(here.search.sampler.begin(here, []), memory)
    controller = Controller(here, spy, [spy], memory)
    worker = FakeWorker("a", 7)
    while not worker.done:
        directives = controller.exchange(worker.train(list(worker.lanes)), worker.offer())
        assert all(memory.rows[number].state in TERMINAL for number in directives.stop)
        assert all(memory.rows[trial.number].state == "running" for trial in directives.start)
        worker.obey(directives)
    audit(memory, here)
    assert all(row.state == "pruned" for number, row in memory.rows.items() if number % 3 == 0)


def test_a_trial_on_another_worker_is_stopped_when_that_worker_next_speaks() -> None:
    here = space(PLAIN, trials=2, group=2, stopping="{patience: {metric: tvd, steps: 10}}")
    memory = Rows()
    controller = Controller.begin(here, memory)
    a, b = Offer(worker="a", lanes=1), Offer(worker="b", lanes=1)
    controller.exchange([], a)
    [trial] = controller.exchange([], b).start
    full_a = replace(a, lanes=0, structure=trial.structure, holds=(TrialStart(0, 1),))
    full_b = replace(b, lanes=0, structure=trial.structure, holds=(TrialStart(1, 1),))
    metrics = (Metric("tvd", "raw", "", 0.5),)
    for step in (10, 20):
        controller.exchange([Report(number=1, fence=1, step=step, metrics=metrics)], full_b)
        said = controller.exchange([Report(number=0, fence=1, step=step, metrics=metrics)], full_a)
    assert said.stop == (0,)
    assert memory.rows[1].state == "pruned"
    late = controller.exchange([Report(number=1, fence=1, step=30, metrics=metrics, state="finished")], full_b)
    assert (late.stop, late.done, memory.rows[1].state) == ((1,), True, "pruned")


def test_reports_of_a_worker_that_does_not_hold_the_trial_change_nothing() -> None:
    here = space(PLAIN, trials=3)
    memory = Rows()
    controller = Controller.begin(here, memory)
    controller.exchange([], Offer(worker="a", lanes=1))
    before = list(memory.log)
    late = [Report(number=number, fence=1, step=10, metrics=(), state="finished") for number in (0, 2, 99)]
    controller.exchange(late, Offer(worker="b", lanes=0))
    assert memory.log == before
    assert controller.progress().reports == 0


def test_nothing_is_believed_of_a_trial_after_its_last_report() -> None:
    here = space(PLAIN, trials=1)
    memory = Rows()
    controller = Controller.begin(here, memory)
    controller.exchange([], Offer(worker="a", lanes=1))
    value = (Metric("tvd", "raw", "", 0.5),)
    last = Report(number=0, fence=1, step=10, metrics=value, state="finished")
    after = Report(number=0, fence=1, step=20, metrics=(Metric("tvd", "raw", "", 0.1),))
    controller.exchange([last, after, last], Offer(worker="a", lanes=0))
    assert (memory.rows[0].reports, memory.rows[0].objective) == ([last], 0.5)


def test_trials_that_were_only_held_are_asked_for_again_after_a_restart() -> None:
    here = space(CONDITIONAL, trials=30, group=30)
    memory = Rows()
    Controller.begin(here, memory).exchange([], Offer(worker="a", lanes=30))
    assert 0 < len(memory.rows) < memory.next_number(), "the test needs trials that were asked for and not started"
    finish(Controller.begin(here, memory), FakeWorker("a", 4))
    audit(memory, here)


@pytest.mark.parametrize(("sampler", "read"), [("random", 0), ("cmaes", 1)])
def test_outcomes_are_read_for_a_sampler_that_learns_alone(sampler: str, read: int) -> None:
    here, memory = space(PLAIN, sampler=sampler, trials=20), CountingRows()
    finish(Controller.begin(here, memory), FakeWorker("one", 4))
    assert memory.read == read
    resumed = Controller.begin(here, memory)
    assert memory.read == 2 * read
    best = min((row.objective, number) for number, row in memory.rows.items() if row.objective is not None)
    assert (resumed.progress().best, resumed.progress().best_number) == best
    assert resumed.progress().counts == {**memory.counts(), "running": 0, "queued": 0}


class CountingRows(Rows):
    """Counts how often the outcomes are read."""

    read = 0

    def outcomes(self, limit: int | None) -> list[Outcome]:
        self.read += 1
        return super().outcomes(limit)


def test_a_worker_that_comes_back_empty_has_lost_its_trials() -> None:
    here = space(PLAIN, trials=3)
    memory = Rows()
    controller = Controller.begin(here, memory)
    first = controller.exchange([], Offer(worker="a", lanes=2)).start
    again = controller.exchange([], Offer(worker="a", lanes=2)).start
    assert first == again
    assert controller.progress().counts["running"] == 2


def test_what_a_worker_says_of_its_own_earlier_start_changes_nothing() -> None:
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=1), memory)
    [first] = controller.exchange([], Offer(worker="a", lanes=1)).start
    [again] = controller.exchange([], Offer(worker="a", lanes=1)).start
    assert (first.start, again.start) == ((0, 1), (0, 2))
    before = list(memory.log)
    late = Report(number=0, fence=1, step=30, metrics=(Metric("tvd", "raw", "", 0.5),), state="finished")
    saved = Checkpoint(number=0, fence=1, step=30, path="p", row=0, sha256="")
    holds = Offer(worker="a", lanes=0, structure=again.structure, holds=(again.start,), saved=(saved,))
    assert controller.exchange([late], holds).stop == ()
    assert (memory.log, memory.rows[0].checkpoints) == (before, ())
    assert controller.exchange([late], replace(holds, holds=(first.start,), saved=())).stop == (0,)


def test_the_trials_of_a_lost_worker_go_to_the_others_before_new_ones() -> None:
    here = space(PLAIN, trials=9)
    memory = Rows()
    controller = Controller.begin(here, memory)
    lost = controller.exchange([], Offer(worker="a", lanes=3)).start
    controller.handle_crash("a")
    assert controller.progress().counts["queued"] == 3
    assert controller.exchange([], Offer(worker="b", lanes=5)).start[:3] == lost


def test_a_stop_request_sends_running_trials_back_and_they_are_run_after_resuming() -> None:
    here = space(PLAIN, trials=8)
    memory = Rows()
    controller = Controller.begin(here, memory)
    worker = FakeWorker("a", 3)
    worker.obey(controller.exchange([], worker.offer()))
    memory.stopping = True
    asked = controller.exchange(worker.train([0]), worker.offer())
    assert asked == Directives(save=True), "first it may write a checkpoint"
    said = controller.exchange([], worker.offer())
    assert (said.stop, said.start, said.done) == ((0, 1, 2), (), True)
    assert {row.state for row in memory.rows.values()} == {"queued"}
    memory.stopping = False
    finish(Controller.begin(here, memory), FakeWorker("a", 3))
    audit(memory, here)


@pytest.mark.parametrize("policy", ["asha: {metric: tvd, min_steps: 10}", "median: {metric: tvd, trials: 3}"])
def test_a_resumed_study_compares_new_trials_with_those_that_go_on(policy: str) -> None:
    def report(number: int, tvd: float, fence: int = 1) -> Report:
        return Report(number=number, fence=fence, step=10, metrics=(Metric("tvd", "raw", "", tvd),))

    here, memory = space(PLAIN, trials=10, stopping=f"{{{policy}}}"), Rows()
    controller = Controller.begin(here, memory)
    starts = [trial.start for trial in controller.exchange([], Offer(worker="a", lanes=9)).start]
    structure = memory.rows[0].trial.structure
    full = Offer(worker="a", lanes=0, structure=structure, holds=tuple(starts))
    for number in range(9):  # each is better than those before, so that all go on
        assert controller.exchange([report(number, 0.9 - number / 10)], full).stop == ()
    saved = [Checkpoint(number=n, fence=1, step=10, path="p", row=n, sha256="") for n in range(9)]
    controller.exchange([], replace(full, saved=tuple(saved)))
    resumed = Controller.begin(here, memory)
    again = [trial.start for trial in resumed.exchange([], Offer(worker="b", lanes=10)).start]
    holds = Offer(worker="b", lanes=0, structure=structure, holds=tuple(again))
    assert resumed.exchange([report(9, 5.0)], holds).stop == (9,)


def test_a_trial_that_was_started_again_is_pruned_by_its_new_fence() -> None:
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=1, stopping="{patience: {metric: tvd, steps: 10}}"), memory)
    controller.exchange([], Offer(worker="a", lanes=1))
    [again] = controller.exchange([], Offer(worker="a", lanes=1)).start
    full = Offer(worker="a", lanes=0, structure=again.structure, holds=(again.start,))
    metrics = (Metric("tvd", "raw", "", 0.5),)
    for step in (10, 20):
        said = controller.exchange([Report(number=0, fence=2, step=step, metrics=metrics)], full)
    assert (said.stop, memory.rows[0].state) == ((0,), "pruned")


def test_a_study_is_finished_only_when_all_of_its_trials_have_ended() -> None:
    here, memory = space(PLAIN, trials=3), Rows()
    controller = Controller.begin(here, memory)
    controller.exchange([], Offer(worker="a", lanes=2))
    controller.close()
    assert memory.state == "stopped"
    resumed = Controller.begin(here, memory)
    finish(resumed, FakeWorker("a", 2))
    resumed.close()
    assert memory.state == "finished"


def test_done_is_said_only_when_no_other_worker_holds_a_trial() -> None:
    here = space(PLAIN, trials=2)
    controller = Controller.begin(here, Rows())
    controller.exchange([], Offer(worker="a", lanes=2))
    assert not controller.exchange([], Offer(worker="b", lanes=2)).done
    controller.handle_crash("a")
    assert len(controller.exchange([], Offer(worker="b", lanes=2)).start) == 2


class Mixed(Strategy):
    """Trials whose structures come round in turn, and a count of those asked for."""

    def __init__(self, structures: int, look_ahead: int) -> None:
        self.structures, self.look_ahead, self.asked = structures, look_ahead, 0

    def ask(self, numbers: range) -> list[Trial]:
        self.asked += len(numbers)
        return [replace(TRIAL, number=n, structure=str(n % self.structures)) for n in numbers]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        pass


TRIAL = Trial(number=0, group=0, seed=0, draws={}, params={}, config={}, structure="")


def test_a_freed_lane_is_refilled_though_four_structures_come_in_turn() -> None:
    queue = TrialQueue(Mixed(4, look_ahead=256), [range(2000)])
    assert len(queue.take(None, 32)) == 32
    refills = 0
    while queue.take("0", 1):
        refills += 1
    assert refills >= (256 - 3 * 32) // 3  # each lane's trial brings three of other structures


def test_a_structure_that_no_longer_comes_up_is_not_asked_for_again() -> None:
    strategy = Mixed(10**9, look_ahead=4096)
    queue = TrialQueue(strategy, [range(10_000)])
    assert len(queue.take(None, 8)) == 1
    assert strategy.asked <= STRUCTURE_WAIT_TRIALS + 8
    for _ in range(100):
        assert not queue.take("0", 1)
    assert strategy.asked <= STRUCTURE_WAIT_TRIALS + 8


def test_no_more_trials_than_the_look_ahead_are_held() -> None:
    strategy = Mixed(8, look_ahead=50)
    queue = TrialQueue(strategy, [range(10_000)])
    taken = len(queue.take(None, 1000))
    assert strategy.asked - taken <= 50


def test_trials_that_went_back_wait_for_new_ones_of_their_structure() -> None:
    returned = [replace(TRIAL, number=n, structure="1") for n in range(2)]
    queue = TrialQueue(Mixed(3, look_ahead=256), [range(2, 400)])
    queue.requeue(returned)
    assert [trial.structure for trial in queue.take(None, 10)] == ["1"] * 10


def test_packs_side_by_side_have_other_structures_and_the_one_that_has_a_structure_asks_for_trials() -> None:
    strategy = Mixed(3, look_ahead=256)
    queue = TrialQueue(strategy, [range(400)])
    assert {trial.structure for trial in queue.take(None, 3)} == {"0"}
    assert [trial.structure for trial in queue.take(None, 2, beside={"0", "1"})] == ["2"] * 2
    asked = strategy.asked
    assert not queue.take(None, 9, beside={"0", "1", "2"})
    assert strategy.asked == asked
    assert queue.take(None, 9)


def test_an_empty_worker_beside_others_is_given_no_structure_that_one_of_them_trains() -> None:
    controller = Controller.begin(space(PLAIN, trials=4), Rows())
    [first] = controller.exchange([], Offer(worker="a", lanes=1, is_beside=True)).start
    assert not controller.exchange([], Offer(worker="b", lanes=2, is_beside=True)).start
    held = Offer(worker="a", lanes=1, structure=first.structure, holds=(first.start,), is_beside=True)
    assert len(controller.exchange([], held).start) == 1
    assert len(controller.exchange([], Offer(worker="c", lanes=2)).start) == 2


def test_an_empty_device_takes_a_structure_that_it_trains_for_others() -> None:
    strategy = Mixed(4, look_ahead=256)
    queue = TrialQueue(strategy, [range(400)])
    assert {trial.structure for trial in queue.take(None, 3, ("7", "2"))} == {"2"}
    asked = strategy.asked
    assert {trial.structure for trial in queue.take(None, 3, ("7",))} <= {"0", "1", "3"}, "none is ever of 7"
    assert strategy.asked <= asked + COMMON_LOOK_AHEAD_TRIALS + 3
    assert {trial.structure for trial in queue.take("0", 3, ())} == {"0"}


def test_where_the_order_of_trials_matters_no_structure_is_looked_for() -> None:
    strategy = Mixed(4, look_ahead=256)
    strategy.in_order = True
    assert [trial.number for trial in TrialQueue(strategy, [range(400)]).take(None, 2, ("2",))] == [0, 4]


def test_a_requeued_trial_is_handed_out_before_one_that_was_asked_ahead() -> None:
    queue = TrialQueue(Mixed(2, look_ahead=8), [range(100)])
    [first] = queue.take("0", 1)
    assert [trial.number for trial in queue.take("1", 2)] == [1, 3], "trial 2 is kept until its structure's turn"
    queue.requeue([first])
    assert [trial.number for trial in queue.take("0", 2)] == [0, 2]


def test_an_empty_device_gets_the_structure_with_most_trials_waiting() -> None:
    here = space(CONDITIONAL, trials=64, group=64)
    controller = Controller.begin(here, Rows())
    sizes = [len(controller.exchange([], Offer(worker=name, lanes=64)).start) for name in "abcd"]
    assert sum(sizes) == 64
    assert len(set(sizes[1:])) > 1
    assert sizes[1:] == sorted(sizes[1:], reverse=True)


def test_what_the_memory_refuses_can_be_sent_again() -> None:
    here = space(PLAIN, trials=12)
    memory = Rows()
    controller = Controller.begin(here, memory)
    worker = FakeWorker("a", 4)
    while not worker.done:
        reports, offer = worker.train(list(worker.lanes)), worker.offer()
        memory.failures = 1
        steps = controller.progress().steps
        with pytest.raises(OSError, match="does not answer"):
            controller.exchange(reports, offer)
        assert controller.progress().steps == steps, "nothing is believed before it is written"
        worker.obey(controller.exchange(reports, offer))
        if not worker.lanes:
            break
    finish(controller, worker)
    audit(memory, here)


@pytest.mark.parametrize(("direction", "best_of"), [("minimize", min), ("maximize", max)])
def test_progress_counts_trials_reports_and_steps(direction: Direction, best_of: Callable[..., Row]) -> None:
    here = space(PLAIN, trials=20, objective=f"{{{direction}: tvd/raw}}")
    memory = Rows()
    controller = Controller.begin(here, memory)
    finish(controller, FakeWorker("a", 4))
    progress = controller.progress()
    states = [row.state for row in memory.rows.values()]
    assert {state: progress.counts.get(state, 0) for state in {*states, "running", "queued"}} == {
        state: states.count(state) for state in {*states, "running", "queued"}
    }
    assert progress.reports == sum(len(row.reports) for row in memory.rows.values())
    assert progress.steps == sum(row.reports[-1].step for row in memory.rows.values())
    best = best_of((row for row in memory.rows.values() if row.objective is not None), key=lambda row: row.objective)
    assert (progress.best, progress.best_number) == (best.objective, best.trial.number)
    resumed = Controller.begin(here, memory).progress()
    assert (resumed.best, resumed.counts) == (progress.best, progress.counts)


@pytest.mark.parametrize(
    ("at", "direction", "values", "expected"),
    [
        ("best", "minimize", [3.0, 1.0, 2.0], 1.0),
        ("best", "maximize", [3.0, 1.0, 2.0], 3.0),
        ("best", "minimize", [math.nan, 2.0, math.inf], 2.0),
        ("last", "minimize", [1.0, 2.0], 2.0),
        ("last", "minimize", [1.0, math.nan], None),
        ("best", "minimize", [math.nan], None),
        ("best", "minimize", [], None),
    ],
)
def test_the_objective_follows_the_reports(
    at: str, direction: str, values: list[float], expected: float | None
) -> None:
    objective = Objective(direction=direction, metric="tvd", variant="bema", condition="length=64", at=at)
    value = None
    for step, number in enumerate(values):
        others = [
            Metric("tvd", "raw", "length=64", -9.0),
            Metric("tvd", "bema", "", -9.0),
            Metric("itp", "bema", "", 9.0),
        ]
        metrics = (*others, Metric("tvd", "bema", "length=64", number))
        value = objective_after(objective, value, Report(number=0, step=step, metrics=metrics))
        value = objective_after(objective, value, Report(number=0, step=step, metrics=tuple(others)))
    assert value == expected


@pytest.mark.parametrize(
    ("objective", "at"), [("itp/raw", 10), ("tvd/raw/length=9", 10), ("tvd/bema", LENGTH), ("tvd/raw", None)]
)
def test_an_objective_that_no_validation_has_ends_the_study(objective: str, at: int | None) -> None:
    """With an average that is missing at the end of a trial, as others may have it; else at the first validation."""
    here = space(PLAIN, trials=3)
    parsed = dict(zip(("metric", "variant", "condition"), (*objective.split("/"), ""), strict=False))
    wanted = dataclasses.replace(here.search.objective, **parsed)
    here = dataclasses.replace(here, search=dataclasses.replace(here.search, objective=wanted))
    controller = Controller.begin(here, Rows())
    [trial] = controller.exchange([], Offer(worker="a", lanes=1)).start
    offer = Offer(worker="a", lanes=0, structure="x", holds=(trial.start,))
    for step in (10, 20, LENGTH):
        state = "finished" if step == LENGTH else "running"
        metrics = (Metric("tvd", "raw", "", 0.5),)
        report = Report(number=trial.number, fence=1, step=step, metrics=metrics, state=state)
        if step == at:
            with pytest.raises(StudyError, match=rf"search.objective: .*{objective}.* choose one of tvd/raw"):
                controller.exchange([report], offer)
            return
        controller.exchange([report], offer)
    assert at is None
