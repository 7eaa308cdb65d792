"""Who may write: nine writes, each by who holds the trial and by who held it before, on both databases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spaces.errors import StudyError
from spaces.records import Checkpoint, Metric, QueuedTrial, Report, WorkerStatus
from spaces.settings import History
from storage import open_store
from tests.support.databases import (
    OBJECTIVE,
    controlled,
    controlled_with_store,
    heard,
    held,
    make_report,
    make_trial,
    raw,
)
from tests.support.fences import ROWS, WRITES, Write, ending, saved

pytestmark = pytest.mark.fast


def seen(url: str) -> list[list[tuple[Any, ...]]]:
    return [raw(url, rows) for rows in ROWS]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_who_held_a_trial_before_changes_no_row_and_who_holds_it_changes_one(url: str, write: Write):
    with controlled(url) as study:
        assert study.start([make_trial(0), make_trial(1)], "old") == {0: 1, 1: 1}
        study.release(held(0))
        assert study.start([make_trial(0)], "old") == {0: 2}, "a name is no fence"
        study.record([make_report(0, 5, fence=2)], [], [saved(2)._replace(step=5)])
        before = seen(url)
        write.act(study, 1)
        if write is WRITES["make room"]:  # the new trial is written, the verdict is not
            raw(url, f"DELETE FROM trials WHERE number = 7 AND study_id = {study.id}")
        assert seen(url) == before
        write.act(study, 2)
        assert raw(url, f"SELECT number FROM trials WHERE number = 0 AND {write.done}") == [(0,)]
        others = [row for row in raw(url, ROWS[0]) if row[0] not in (0, 7)]
        assert others == [row for row in before[0] if row[0] == 1]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_write_made_again_as_its_answer_was_lost_comes_to_the_same(url: str, write: Write):
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        first = write.act(study, 1)
        before = seen(url)
        assert write.act(study, 1) == first
        assert seen(url) == before


def test_a_start_takes_a_trial_that_waits_and_no_other(url: str):
    """The ninth write, of whom there is no holder yet: only one of two gets the trial."""
    with controlled(url) as study:
        assert study.start([make_trial(0)], "a") == {0: 1}
        with pytest.raises(StudyError, match=r"trials \[0\] have ended or run elsewhere; b cannot start them"):
            study.start([make_trial(0)], "b")
        study.release(held(0))
        assert study.start([make_trial(0)], "b") == {0: 2}
        study.end([replace(ending("pruned", 2))])
        with pytest.raises(StudyError, match=r"trials \[0\] have ended"):
            study.start([make_trial(0)], "b")


def test_one_stale_lane_in_a_living_pack_costs_nothing_of_the_others(url: str):
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(3)], "pack")
        study.release(held(1))
        study.start([make_trial(1)], "other")
        reports = [make_report(number, 10) for number in range(3)]
        assert study.record(reports, [replace(ending("finished", 1), number=n) for n in (0, 1)]) == {0, 2}
    rows = raw(url, "SELECT number, state, steps FROM trials ORDER BY number")
    assert rows == [(0, "finished", 10), (1, "running", 0), (2, "running", 10)]


def leased(url: str, columns: str = "id, state") -> list[tuple[Any, ...]]:
    return raw(url, f"SELECT {columns} FROM workers ORDER BY id")


def test_a_lease_runs_out_by_the_databases_clock_and_is_not_renewed_any_more(url: str):
    with controlled(url) as study:
        assert study.renew_leases([heard("alive"), heard("silent", seconds=61)], 60) == ["silent"]
        assert study.renew_leases([heard("alive"), heard("silent")], 60) == ["silent"], (
            "told again: an answer gets lost"
        )
        assert leased(url) == [("alive", "running"), ("silent", "lost")]


def test_a_clock_that_jumps_ends_leases_or_lengthens_them_and_nothing_else(url: str):
    """The only clock that counts is the database's; what a jump of it does to a lease, moving the lease does."""
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.renew_leases([heard()], 60)
        ago = "datetime(lease_until, '-2 hours')" if url.startswith("sqlite") else "lease_until - interval '2 hours'"
        assert study.renew_leases([], 60) == []
        raw(url, f"UPDATE workers SET lease_until = {ago}")
        assert study.renew_leases([], 60) == ["w"]
        assert study.rescue(held(0)) == [QueuedTrial(0, crashes=1)]
        assert study.start([make_trial(0)], "x") == {0: 2}
        assert study.record([make_report(0, 10)]) == frozenset(), "what the old one says is late"


def test_a_worker_of_an_earlier_controller_is_lost_when_control_is_taken_and_cannot_be_renewed(url: str):
    with controlled_with_store(url) as (store, study):
        study.renew_leases([heard("old")], 60)
    with open_store(url) as store:
        study = store.take_control(study.id, policy="full", objective=OBJECTIVE)
        assert leased(url, "id, state, fence") == [("old", "lost", 1)]
        study.renew_leases([heard("old"), heard("new")], 60)
        assert leased(url, "id, state, fence") == [("new", "running", 2), ("old", "lost", 1)]


def test_who_goes_home_keeps_no_lease(url: str):
    with controlled(url) as study:
        gone: WorkerStatus = heard(state="done", seconds=100)
        study.renew_leases([heard()], 60)
        assert study.renew_leases([gone], 60) == []
        assert leased(url) == [("w", "done")]


def test_a_trial_goes_on_from_its_newest_checkpoints_with_the_reports_up_to_there(url: str):
    def at(step: int, fence: int = 1) -> Checkpoint:
        return saved(fence)._replace(step=step, path=f"/p{step}")

    with controlled(url, "thin") as study:
        study.start([make_trial(0)], "w")
        for step in range(10, 60, 10):
            study.record([make_report(0, step, tvd=1 / step)], [], [at(step)] if step < 50 else [])
        assert raw(url, "SELECT step FROM checkpoints ORDER BY step") == [(30,), (40,)]
        before = raw(url, "SELECT * FROM metrics ORDER BY 1, 2, 3")
        [waiting] = study.rescue(held(0))
        assert waiting == QueuedTrial(0, crashes=1, checkpoints=(at(40), at(30)))
        assert raw(url, "SELECT DISTINCT step FROM metrics ORDER BY step") == [(10,), (20,), (30,), (40,)]
        [(_, again)] = study.queries.queued()
        assert again == waiting
        assert study.queries.checkpoint_paths() == {"/p30", "/p40"}
        study.start([replace(make_trial(0), checkpoints=waiting.checkpoints)], "w")
        assert raw(url, "SELECT steps, fence FROM trials") == [(40, 2)]
        assert study.record([make_report(0, 50, tvd=1 / 50, fence=2)]) == {0}
        assert raw(url, "SELECT * FROM metrics ORDER BY 1, 2, 3") == before
        study.record([], [], [at(50, fence=2)])
        assert raw(url, "SELECT deaths FROM trials") == [(0,)], "it has come further"
        study.end([ending("pruned", 2)])
        assert raw(url, "SELECT count(*) FROM checkpoints") == [(0,)]
        assert study.queries.checkpoint_paths() == frozenset()


def test_what_history_forgets_does_not_depend_on_a_death(url: str):
    """Thinned as an uninterrupted trial is, as a checkpoint keeps what the policy must know."""
    with controlled(url, "thin") as study:
        study.start([make_trial(0), make_trial(1)], "w")
        for index in range(1, 60):
            report = make_report(0, index, tvd=abs(index - 40.0))
            study.record([report, replace(report, number=1, fence=1 + (index > 33))])
            if index == 30:
                study.record([], [], [saved(1)._replace(number=1, step=30)])
            if index == 33:
                [waiting] = study.rescue(held(1))
                study.start([replace(make_trial(1), checkpoints=waiting.checkpoints)], "w")
                for again in (31, 32, 33):
                    study.record([replace(make_report(1, again, tvd=abs(again - 40.0)), fence=2)])
    steps = [
        raw(url, f"SELECT DISTINCT step FROM metrics WHERE trial_id = {study.id * 10**9 + n} ORDER BY step")
        for n in (0, 1)
    ]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("history", ["thin", "full"])
def test_a_trial_that_fell_back_behind_its_checkpoint_keeps_its_reports_and_its_deaths(url: str, history: History):
    """Its files are bad: what it saves on the way back is no progress, and forgets nothing that was reported."""
    with controlled(url, history) as study:
        study.start([make_trial(0)], "w")
        for step in (20, 40, 60, 80, 100):
            study.record([make_report(0, step)])
        study.record([], [], [saved(1)._replace(step=100)])
        for fence in (2, 3):
            [waiting] = study.rescue(held(0, fence=fence - 1))
            assert (waiting.crashes, waiting.checkpoints) == (fence - 1, (saved(1)._replace(step=100),))
            study.start([replace(make_trial(0), checkpoints=waiting.checkpoints)], "w")
            study.record([make_report(0, 20, fence=fence), make_report(0, 40, fence=fence)])
            study.record([], [], [saved(fence)._replace(step=40)])
        assert raw(url, "SELECT step FROM checkpoints") == [(100,)]
        assert raw(url, "SELECT DISTINCT step FROM metrics ORDER BY step") == [(s,) for s in (20, 40, 60, 80, 100)]
        assert raw(url, "SELECT deaths FROM trials") == [(2,)]
        study.record([], [], [saved(3)._replace(step=100)])
        assert raw(url, "SELECT deaths FROM trials") == [(2,)], "it is only where it was before"
        study.record([], [], [saved(3)._replace(step=120)])
        assert raw(url, "SELECT deaths FROM trials") == [(0,)]


def test_results_on_test_sets_beyond_the_step_that_a_trial_falls_back_to_are_deleted(url: str):
    def sealed_report(step: int, value: float, fence: int) -> Report:
        return replace(make_report(0, step, fence=fence), sealed=(Metric("tvd", "bema", "", value),))

    with controlled(url, "thin") as study:
        study.start([make_trial(0), make_trial(1)], "w")
        study.record([sealed_report(10, 0.9, 1), sealed_report(20, 0.2, 1)])
        study.record([replace(sealed_report(20, 0.4, 1), number=1)])
        study.release(held(0))
        assert raw(url, "SELECT number, step FROM test_results") == [(1, 20)]
        study.start([make_trial(0)], "w")
        study.record([sealed_report(10, 0.9, 2)])
        study.end([ending("pruned", 2)])
    assert raw(url, "SELECT number, step FROM test_results ORDER BY number") == [(0, 10), (1, 20)]


def test_what_the_controller_knew_comes_back_with_the_checkpoint(url: str):
    known = {"objective": 0.25, "monitors": [[{"bema": 0.5}, 10, 0], None]}
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([], [], [saved(1)._replace(controller_state=known)])
        [waiting] = study.release(held(0))
        assert waiting.checkpoints[0].controller_state == known


def test_what_crosses_between_processes_can_be_sent():
    """As Ray does: a worker's checkpoints, and those that a trial comes back with."""
    from multiprocessing.reduction import ForkingPickler

    trial = replace(
        make_trial(0), checkpoints=(saved(1), saved(2)._replace(controller_state={"objective": 0.5, "monitors": []}))
    )
    assert ForkingPickler.loads(ForkingPickler.dumps((trial, saved(1)))) == (trial, saved(1))
