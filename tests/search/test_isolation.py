"""Trials that may be why workers die, leases that run out, and what a controller knows of trials that go on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from search.steering.controller import Controller
from search.steering.leases import LEASE_SECONDS, Leases
from search.steering.requeueing import ALONE, QUARANTINED_AFTER, SUSPECTED_AFTER
from spaces.records import Checkpoint, Directives, Metric, Offer, Report, Trial
from tests.support.controller import FakeWorker, Rows, finish
from tests.support.search_spaces import CONDITIONAL, PLAIN, space


def offer(worker: str, lanes: int = 4, *, holds: Sequence[Trial] = (), structure: str | None = None) -> Offer:
    return Offer(worker=worker, lanes=lanes, structure=structure, holds=tuple(trial.start for trial in holds))


def test_a_trial_whose_worker_died_three_times_gets_an_empty_device_for_itself_and_at_five_deaths_has_failed():
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=9), memory)
    for attempt in range(SUSPECTED_AFTER):
        assert len(controller.exchange([], offer(f"w{attempt}", 2)).start) == 2
        controller.handle_crash(f"w{attempt}")
    for attempt in range(SUSPECTED_AFTER, QUARANTINED_AFTER):
        [alone] = controller.exchange([], offer(f"w{attempt}", 4)).start
        assert alone.number == 0 if attempt == SUSPECTED_AFTER else 1, "one after the other"
        again = controller.exchange([], offer(f"w{attempt}", 3, holds=[alone], structure=alone.structure))
        assert again.start == (), "nothing trains beside it"
        if attempt == SUSPECTED_AFTER:
            finish_one(controller, alone, f"w{attempt}")
            controller.handle_departure(f"w{attempt}")
        else:
            controller.handle_crash(f"w{attempt}")
    [poison] = controller.exchange([], offer("last", 4)).start
    controller.handle_crash("last")
    assert (poison.number, memory.rows[1].state, memory.rows[1].crashes) == (1, "failed", QUARANTINED_AFTER)
    finish(controller, FakeWorker("x", 4))
    assert {row.state for number, row in memory.rows.items() if number != 1} <= {"finished", "diverged"}


def finish_one(controller: Controller, trial: Trial, worker: str, holds: Sequence[Trial] = ()) -> Directives:
    metrics = (Metric("tvd", "raw", "", 0.5),)
    last = Report(number=trial.number, fence=trial.fence, step=30, metrics=metrics, state="finished")
    return controller.exchange([last], offer(worker, 1, structure=trial.structure, holds=holds))


def test_launches_that_die_with_many_trials_prove_nothing_against_any():
    here, memory = space(PLAIN, trials=4), Rows()
    for _ in range(9):
        assert len(Controller.begin(here, memory).exchange([], offer("w", 4)).start) == 4
    Controller.begin(here, memory)
    assert {row.crashes for row in memory.rows.values()} == {0}


def test_a_trial_with_which_alone_launches_crash_trains_last_and_then_has_failed():
    here, memory = space(PLAIN, trials=3), Rows()
    for _ in range(QUARANTINED_AFTER):
        assert len(Controller.begin(here, memory, crashed=True).exchange([], offer("w", 1)).start) == 1
    controller = Controller.begin(here, memory, crashed=True)
    others = controller.exchange([], offer("w", 4)).start
    assert [trial.number for trial in others] == [1, 2]
    finish_one(controller, others[0], "w", others[1:])
    said = finish_one(controller, others[1], "w")
    assert said.start == (), "this device is not yet empty"
    for _ in range(ALONE):
        [last] = controller.exchange([], offer("w", 4)).start
        assert last.number == 0
        controller = Controller.begin(here, memory, crashed=True)
    assert memory.rows[0].state == "failed"


def test_launches_that_are_killed_prove_nothing_against_the_only_trial_that_they_train():
    """A8: one worker, one lane, thirteen kills of the launcher."""
    here, memory = space(PLAIN, trials=2), Rows()
    for _ in range(200):
        assert len(Controller.begin(here, memory).exchange([], offer("w", 1)).start) == 1
    Controller.begin(here, memory)
    assert [(row.state, row.crashes) for row in memory.rows.values()] == [("queued", 0)]


def test_where_launches_crash_with_every_trial_none_is_to_blame():
    here, memory = space(PLAIN, trials=2), Rows()
    for _ in range(5 * QUARANTINED_AFTER):
        Controller.begin(here, memory, crashed=True).exchange([], offer("w", 1))
    assert {row.state for row in memory.rows.values()} <= {"queued", "running"}


def test_a_trial_with_nothing_beside_it_in_the_study_fails_of_its_own_crashes():
    here, memory = space(PLAIN, trials=1), Rows()
    for _ in range(QUARANTINED_AFTER + ALONE):
        Controller.begin(here, memory, crashed=True).exchange([], offer("w", 1))
    Controller.begin(here, memory, crashed=True)
    assert memory.rows[0].state == "failed"


def test_crashes_with_a_trial_alone_fail_it_only_while_workers_of_other_trials_live():
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=40), memory)
    [healthy] = controller.exchange([], offer("first", 1)).start
    finish_one(controller, healthy, "first")
    for attempt in range(8):
        [suspect] = controller.exchange([], offer(f"s{attempt}", 1)).start
        controller.exchange([], offer(f"o{attempt}", 1))
        controller.handle_crash(f"s{attempt}")
        controller.handle_crash(f"o{attempt}")
        assert memory.rows[suspect.number].state == "queued", "all workers crash: it is the machine"


def test_a_quarantined_trial_of_another_structure_never_joins_a_pack():
    here, memory = space(CONDITIONAL, trials=8, group=8), Rows()
    for _ in range(QUARANTINED_AFTER):
        Controller.begin(here, memory, crashed=True).exchange([], offer("w", 1))
    controller, worker = Controller.begin(here, memory), FakeWorker("w", 4)
    finish(controller, worker)  # a pack of one structure is asserted there
    assert len(memory.rows) == 8


def test_a_machine_that_leaves_and_a_lease_that_runs_out_are_no_trials_doing():
    memory, clock = Rows(), [0.0]
    controller = Controller.begin(space(PLAIN, trials=4), memory, lambda: clock[0])
    controller.exchange([], offer("gone", 2))
    controller.handle_departure("gone")
    held = controller.exchange([], offer("silent", 2)).start
    for _ in range(8):
        clock[0] += 10
        memory.now = clock[0]
        controller.sweep()
    assert {row.crashes for row in memory.rows.values()} == {0}
    late = Report(number=held[0].number, fence=held[0].fence, step=30, metrics=(), state="finished")
    full = offer("silent", 0, holds=held, structure=held[0].structure)
    assert controller.exchange([late], full) == Directives(lease_lost=True)
    assert not controller.renew("silent")
    assert controller.progress().counts["queued"] == 2


def test_a_crash_of_a_pack_fails_none_of_its_trials():
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=2), memory)
    assert len(controller.exchange([], offer("w", 2)).start) == 2
    for row in memory.rows.values():
        row.crashes = QUARANTINED_AFTER
    controller.handle_crash("w")
    assert {row.state for row in memory.rows.values()} == {"queued"}


def test_only_a_checkpoint_that_is_further_than_the_last_clears_a_trial_of_suspicion():
    controller = Controller.begin(space(PLAIN, trials=4), Rows())
    for attempt in range(SUSPECTED_AFTER):
        [trial] = controller.exchange([], offer(f"w{attempt}", 1)).start
        if attempt == 0:
            controller.exchange([], saving(trial, "w0", 0, step=10))
        controller.handle_crash(f"w{attempt}")
    [alone] = controller.exchange([], offer("w", 4)).start
    assert controller.exchange([], saving(alone, "w", 3, step=10)).start == ()
    assert len(controller.exchange([], saving(alone, "w", 3, step=20)).start) == 3


def saving(trial: Trial, worker: str, lanes: int, step: int) -> Offer:
    """Return the offer of a worker that trains this trial alone, and has written a checkpoint of it."""
    saved = Checkpoint(number=trial.number, fence=trial.fence, step=step, path="p", row=0, sha256="")
    return replace(offer(worker, lanes, holds=[trial], structure=trial.structure), saved=(saved,))


def test_a_lease_is_written_before_its_worker_is_given_a_trial():
    memory = Rows()
    assert Controller.begin(space(PLAIN, trials=1), memory).exchange([], offer("new", 1)).start
    assert "new" in memory.lease_until


@pytest.mark.parametrize("first", ["sweep", "a new worker"])
def test_a_controller_that_was_away_judges_nobody_before_all_have_a_new_lease(first: str):
    memory, clock = Rows(), [0.0]
    leases = Leases(memory, lambda: clock[0])
    assert leases.admit(offer("old"))
    clock[0] = memory.now = LEASE_SECONDS + 10
    if first == "sweep":
        assert leases.sweep() == []
    else:
        assert leases.admit(offer("new"))
    clock[0] = memory.now = clock[0] + 15
    assert leases.sweep() == []
    assert leases.renew("old")


POLICIES = {
    "patience": "{patience: {steps: 40}}",
    "asha": "{asha: {min_steps: 10, eta: 2}}",
    "median": "{median: {trials: 3, steps: 20}}",
    "population": "{population: {every: 20}}",
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_a_stopping_policy_goes_on_with_a_trial_as_if_it_had_not_been_away(policy: str):
    here = space(PLAIN, trials=8, stopping=policy)
    [configured] = here.search.stopping
    for seed in range(20):
        chance = random.Random(seed)
        plain, moved = (configured.begin(here.search.objective) for _ in range(2))
        running, groups = list(range(6)), {number: number // 3 for number in range(6)}
        for step in range(10, 200, 10):
            reports = [
                Report(number=n, step=step, metrics=(Metric("tvd", "raw", "", chance.random()),)) for n in running
            ]
            verdicts = plain.observe(reports, groups)
            assert moved.observe(reports, groups) == verdicts
            assert [plain.state(n) for n in running] == [moved.state(n) for n in running]
            for number in verdicts:
                plain.forget(number)
                moved.forget(number)
            running = [number for number in running if number not in verdicts]
            for number in [n for n in running if chance.random() < 0.3]:
                state = json.loads(json.dumps(moved.state(number)))
                moved.forget(number)
                assert moved.state(number) is None
                moved.restore(number, groups[number], state)


def test_the_objective_of_a_trial_that_goes_on_is_what_it_was():
    """Also where the report that it is from is not kept any more."""
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=1), memory)
    [trial] = controller.exchange([], offer("a", 1)).start
    best = Report(number=0, fence=1, step=10, metrics=(Metric("tvd", "raw", "", 0.1),))
    at = Checkpoint(number=0, fence=1, step=10, path="p", row=0, sha256="")
    held = replace(offer("a", 0, holds=[trial], structure=trial.structure), saved=(at,))
    controller.exchange([best], held)
    controller.handle_crash("a")
    memory.rows[0].reports.clear()
    [again] = controller.exchange([], offer("b", 1)).start
    worse = (Metric("tvd", "raw", "", 0.7),)
    last = Report(number=0, fence=again.fence, step=30, metrics=worse, state="finished")
    controller.exchange([last], offer("b", 0, structure=again.structure))
    assert memory.rows[0].objective == 0.1


@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_reports_that_a_trial_repeats_without_its_checkpoint_file_change_no_policy(policy: str):
    """A copied database has the rows of checkpoints, and not the files: trials start from step 0 again."""
    memory = Rows()
    controller = Controller.begin(space(PLAIN, trials=1, stopping=policy), memory)
    [trial] = controller.exchange([], offer("a", 1)).start
    for step in (10, 20):
        at = Checkpoint(number=0, fence=1, step=step, path="p", row=0, sha256="")
        held = replace(offer("a", 0, holds=[trial], structure=trial.structure), saved=(at,))
        controller.exchange([reported(trial, step)], held)
    controller.exchange([], held)
    known = memory.rows[0].checkpoints[0].controller_state
    controller.handle_crash("a")
    [again] = controller.exchange([], offer("b", 1)).start
    held = offer("b", 0, holds=[again], structure=again.structure)
    for step in (10, 20):
        controller.exchange([reported(again, step)], held)
    at = Checkpoint(number=0, fence=again.fence, step=20, path="q", row=0, sha256="")
    controller.exchange([], replace(held, saved=(at,)))
    assert memory.rows[0].checkpoints[0].controller_state == known


def reported(trial: Trial, step: int) -> Report:
    return Report(number=trial.number, fence=trial.fence, step=step, metrics=(Metric("tvd", "raw", "", 1 / step),))
