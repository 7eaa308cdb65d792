"""The contract of storage: every test runs on SQLite and on PostgreSQL, and looks with the driver alone."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spaces.errors import StudyError
from spaces.records import Ancestor, Metric, QueuedTrial, Report, StoredTrial, Trial, TrialResult
from spaces.settings import Direction
from storage import open_reader, open_store, request_stop
from tests.support.databases import (
    OBJECTIVE,
    controlled,
    controlled_with_store,
    heard,
    held,
    make_fingerprint,
    make_report,
    make_trial,
    new_study,
    raw,
)
from tests.support.fences import saved

pytestmark = pytest.mark.fast

ALL_TRIALS = "SELECT number, state, worker, steps, objective, error FROM trials ORDER BY number"
ALL_METRICS = "SELECT * FROM metrics ORDER BY trial_id, step, name"


def finished(number: int, objective: float | None = 0.25) -> TrialResult:
    return TrialResult(number=number, fence=1, state="finished", objective=objective)


def stage(trial: Trial) -> StoredTrial:
    """Return the trial as it is found again in its row."""
    return StoredTrial(trial.number, dict(trial.draws), trial.parent_step, dict(trial.params), dict(trial.config))


def test_a_study_is_written_as_it_was_given(url: str):
    with open_store(url) as store:
        study = new_study(store)
    assert raw(
        url, "SELECT id, name, space, space_hash, objective, direction, seed, trials, state, version FROM studies"
    ) == [(study, "study", "study: x", "f00", "tvd/bema", "minimize", 7, 100, "stopped", "0.2.0")]


def test_a_study_name_is_taken_once(url: str):
    with open_store(url) as store:
        first = new_study(store)
        with pytest.raises(StudyError, match="'study' exists already"):
            new_study(store)
        assert new_study(store, "another") != first


def test_a_store_opened_again_finds_what_was_written(url: str):
    with controlled_with_store(url) as (store, study):
        study.start([make_trial(0)], "w")
    with open_store(url) as store:
        study = store.take_control(study.id, policy="full", objective=OBJECTIVE)
        assert study.queries.counts() == {"running": 1}


def test_the_state_of_a_study_is_stored(url: str):
    with controlled(url) as study:
        study.set_state("finished")
    assert raw(url, "SELECT state FROM studies") == [("finished",)]


def test_a_started_trial_has_its_configuration_in_columns(url: str):
    with controlled(url) as study:
        study.start([make_trial(5)], "w")
    columns = "id, study_id, number, group_number, state, task, model, scorer, seed, worker, fence, steps"
    expected = (
        study.id * 10**9 + 5,
        study.id,
        5,
        1,
        "running",
        "set_complement",
        "minimal",
        "ssa",
        2**62 + 5,
        "w",
        1,
        0,
    )
    assert raw(url, f"SELECT {columns} FROM trials") == [expected]


def test_a_model_without_scorer_has_none(url: str):
    trial = make_trial(0)
    trial = type(trial)(
        number=0, group=0, seed=1, draws={}, params={}, config={**trial.config, "model": {"name": "m"}}, structure=""
    )
    with controlled(url) as study:
        study.start([trial], "w")
    assert raw(url, "SELECT model, scorer FROM trials") == [("m", None)]


def test_starting_twice_changes_nothing(url: str):
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        before = raw(url, "SELECT * FROM trials ORDER BY number")
        study.start([make_trial(0), make_trial(1)], "w")
        assert raw(url, "SELECT * FROM trials ORDER BY number") == before


def test_a_trial_that_runs_elsewhere_cannot_be_started_and_nothing_is_written(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        with pytest.raises(StudyError, match=r"trials \[0\] have ended or run elsewhere; other cannot"):
            study.start([make_trial(0), make_trial(1)], "other")
    assert raw(url, ALL_TRIALS) == [(0, "running", "w", 0, None, None)]


def test_an_empty_call_does_nothing(url: str):
    with controlled(url) as study:
        study.start([], "w")
        study.end([])
        assert study.record([]) == frozenset()


def test_a_record_writes_metrics_steps_and_verdicts_together(url: str):
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        held = study.record([make_report(1, 10), make_report(0, 10), make_report(0, 20)], [finished(0)])
    assert held == {0, 1}
    assert raw(url, ALL_TRIALS) == [(0, "finished", "w", 20, 0.25, None), (1, "running", "w", 10, None, None)]
    first = study.id * 10**9
    assert raw(url, ALL_METRICS) == [
        row
        for trial, step in ((first, 10), (first, 20), (first + 1, 10))
        for row in ((trial, step, "loss", "raw", "length=64", 1.5), (trial, step, "tvd", "bema", "", 0.5))
    ]


def test_a_report_without_metrics_moves_the_steps(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([Report(number=0, fence=1, step=30, metrics=())])
    assert raw(url, "SELECT steps FROM trials") == [(30,)]


def test_what_computed_a_trial_is_stored_and_forgotten_where_it_starts_from_nothing(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        for step, kind in enumerate(("", "native AVX2", "native AVX2", "traced AVX512", "native AVX2"), 1):
            study.record([replace(make_report(0, step), fingerprint=make_fingerprint(step_kind=kind))])
        assert raw(url, "SELECT step_kind FROM trials") == [("native AVX2, traced AVX512",)]
        study.release(held(0))
        study.start([make_trial(0)], "w")
        assert raw(url, "SELECT step_kind FROM trials") == [(None,)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(url: str, value: float):
    report = Report(number=0, fence=1, step=1, metrics=(Metric("loss", "raw", "", value),), state="diverged")
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([report], [finished(0, value)])
    assert raw(url, "SELECT value FROM metrics") == [(None,)]
    assert raw(url, "SELECT objective FROM trials") == [(None,)]


def test_a_record_sent_again_changes_nothing(url: str):
    reports = [make_report(0, 10), make_report(1, 10)]
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        assert study.record(reports, [finished(0)]) == {0, 1}
        before = raw(url, "SELECT * FROM trials ORDER BY number"), raw(url, ALL_METRICS)
        assert study.record(reports, [finished(0)]) == {0, 1}
        assert (raw(url, "SELECT * FROM trials ORDER BY number"), raw(url, ALL_METRICS)) == before


def test_a_study_counts_the_steps_of_its_trials_that_ended_each_once(url: str):
    child = replace(make_trial(2), lineage=(Ancestor(0, 1, {}, until=20),))
    with controlled_with_store(url) as (store, study):
        other = new_study(store, "other")
        study.start([make_trial(0), make_trial(1), child], "w")
        study.record([make_report(0, 30), make_report(1, 40), make_report(2, 50)], [finished(0)])
        study.end([finished(0), finished(2), finished(7)])
        assert raw(url, f"SELECT steps FROM studies WHERE id = {study.id}") == [(30 + 50 - 20,)]
        study.release(held(1))
        study.start([make_trial(1)], "w")
        study.record([make_report(1, 10, fence=2)], [replace(finished(1), fence=2)])
        assert raw(url, f"SELECT steps FROM studies WHERE id = {study.id}") == [(30 + 50 - 20 + 10,)]
        assert raw(url, f"SELECT steps FROM studies WHERE id = {other}") == [(0,)]


@pytest.mark.long
def test_the_queue_of_a_study_is_found_without_reading_what_ended(tmp_path: Path):
    """Counted in SQLite's own operations, tens of them."""
    work: list[int] = []
    for trials in (30, 3000):
        with controlled_with_store(f"sqlite:///{tmp_path}/{trials}.db") as (store, study):
            study.start([make_trial(number) for number in range(trials)], "w")
            study.end([finished(number) for number in range(5, trials)])
            study.release(study.queries.running())
            counted: list[None] = []
            driver = store._session._connection.connection.driver_connection
            driver.set_progress_handler(lambda counted=counted: counted.append(None), 10)
            assert len(study.queries.queued()) == 5
        work.append(len(counted))
    assert work[1] <= 2 * work[0] + 2


def test_the_numbers_that_were_never_started_are_told_as_ranges(url: str):
    with controlled_with_store(url) as (store, study):
        assert study.queries.holes() == []
        study.start([make_trial(number) for number in (2, 3, 7, 8, 10)], "w")
        other = store.take_control(new_study(store, "other"), policy="full", objective=OBJECTIVE)
        other.start([make_trial(5)], "w")
        assert study.queries.holes() == [range(2), range(4, 7), range(9, 10)]
        study.start([make_trial(number) for number in (0, 1, 4, 5, 6, 9)], "w")
        assert study.queries.holes() == []


@pytest.mark.parametrize(("direction", "expected"), [("minimize", (0.25, 2)), ("maximize", (0.75, 1))])
def test_the_best_trial_is_the_first_of_those_with_the_best_objective(url: str, direction: Direction, expected: object):
    endings = [finished(0, 0.5), finished(1, 0.75), finished(2), finished(3), finished(4, 0.75), finished(5, None)]
    with controlled(url) as study:
        assert study.queries.best(direction) is None
        study.start([make_trial(number) for number in range(7)], "w")
        study.end([endings[3], endings[4]])
        study.end(endings)
        assert study.queries.best(direction) == expected


def test_an_older_report_does_not_move_the_steps_back(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([make_report(0, 20)])
        study.record([make_report(0, 10)])
    assert raw(url, "SELECT steps FROM trials") == [(20,)]


def test_a_stale_worker_changes_nothing(url: str):
    with controlled(url) as study:
        assert study.start([make_trial(0)], "lost") == {0: 1}
        assert study.rescue(held(0)) == [QueuedTrial(0, crashes=1)]
        assert study.start([make_trial(0)], "new") == {0: 2}
        before = raw(url, "SELECT * FROM trials")
        assert study.record([make_report(0, 99)], [finished(0)]) == frozenset()
        assert raw(url, "SELECT * FROM trials") == before
        assert raw(url, ALL_METRICS) == []
        assert study.record([make_report(0, 10, fence=2)]) == {0}


def test_a_report_for_an_unknown_trial_is_not_written(url: str):
    with controlled(url) as study:
        assert study.record([make_report(3, 10)], [finished(3)]) == frozenset()
    assert raw(url, ALL_METRICS) == []


@pytest.mark.parametrize("state", ["finished", "pruned", "diverged", "failed"])
def test_an_ended_trial_never_changes_again(url: str, state: str):
    ending = TrialResult(number=0, fence=1, state=state, objective=None, error="because")  # pyright: ignore[reportArgumentType]
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([make_report(0, 10)], [ending])
        before = raw(url, "SELECT * FROM trials"), raw(url, ALL_METRICS)
        study.end([TrialResult(number=0, fence=1, state="pruned", objective=0.1)])
        study.record([make_report(0, 20)], [finished(0)])
        assert study.queries.running() == study.rescue(held(0)) == []
        with pytest.raises(StudyError):
            study.start([make_trial(0)], "w")
        assert (raw(url, "SELECT * FROM trials"), raw(url, ALL_METRICS)) == before
    assert raw(url, "SELECT state, error FROM trials") == [(state, "because")]


def test_the_controller_ends_a_trial_whoever_holds_it(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "a")
        study.start([make_trial(1)], "b")
        study.end([TrialResult(number=n, fence=1, state="pruned", objective=0.1 * n) for n in (0, 1, 2)])
    assert raw(url, "SELECT number, state, objective FROM trials ORDER BY number") == [
        (0, "pruned", 0),
        (1, "pruned", 0.1),
    ]


def test_requeued_trials_start_from_nothing(url: str):
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "a")
        study.start([make_trial(2)], "b")
        study.record([make_report(0, 10), make_report(1, 10)], [finished(1)])
        study.record([make_report(2, 10)])
        assert study.release(held(0, 1)) == [QueuedTrial(0)]
        assert study.queries.queued() == [([stage(make_trial(0))], QueuedTrial(0))]
        assert raw(url, "SELECT DISTINCT trial_id FROM metrics ORDER BY 1") == [(study.id * 10**9 + n,) for n in (1, 2)]
        assert study.queries.running() == held(2)
        assert study.rescue(held(2)) == [QueuedTrial(2, crashes=1)]
        study.start([make_trial(0)], "c")
    assert raw(url, "SELECT number, state, worker, steps, fence FROM trials ORDER BY number") == [
        (0, "running", "c", 0, 2),
        (1, "finished", "a", 10, 1),
        (2, "queued", None, 0, 1),
    ]


def copy_of(parent: Trial, number: int, step: int) -> Trial:
    """Trial `number` as one that goes on from the state of another."""
    past = Ancestor(parent.number, parent.seed, parent.config, step)
    return replace(make_trial(number), lineage=(*parent.lineage, past))


def test_a_trial_that_goes_on_from_another_is_stored_with_it_and_found_again_with_its_line(url: str):
    child = copy_of(make_trial(1), 120, 30)
    grandchild = copy_of(child, 121, 50)
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        study.start([child], "w", [TrialResult(number=0, fence=1, state="pruned", objective=0.5)])
        study.start([grandchild, copy_of(make_trial(1), 122, 60)], "w", [finished(1)])
        assert study.queries.copy_steps() == {1: 60, 120: 50}
        rows = raw(url, "SELECT number, state, parent, parent_step, steps FROM trials ORDER BY number")
        assert [trial.number for trial in study.release(study.queries.running())] == [120, 121, 122]
        line = [stage(trial) for trial in (make_trial(1), child, grandchild)]
        assert [stages for stages, _ in study.queries.queued()][:2] == [line[:2], line]
    assert rows == [
        (0, "pruned", None, None, 0),
        (1, "finished", None, None, 0),
        (120, "running", 1, 30, 30),
        (121, "running", 120, 50, 50),
        (122, "running", 1, 60, 60),
    ]
    assert raw(url, "SELECT trials FROM studies") == [(123,)]


def test_a_trial_keeps_its_place_where_the_one_that_should_take_it_cannot_start(url: str):
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        with pytest.raises(StudyError, match="cannot start"):
            study.start([copy_of(make_trial(1), 0, 10)], "other", [finished(1)])
    assert raw(url, "SELECT number, state FROM trials ORDER BY number") == [(0, "running"), (1, "running")]


def test_studies_do_not_touch_one_another(url: str):
    with controlled_with_store(url) as (store, study):
        other = store.take_control(new_study(store, "other"), policy="full", objective=OBJECTIVE)
        for each in (study, other):
            each.start([make_trial(0)], "w")
            each.record([make_report(0, 10)])
        study.release(held(0))
        assert study.queries.counts() == {"queued": 1}
        assert other.queries.counts() == {"running": 1}
        assert other.queries.outcomes(None) == []
        assert (study.queries.running(), other.queries.running()) == ([], held(0))
        study.start([make_trial(0)], "w")
        other.end([finished(0)])
        assert (study.queries.counts(), other.queries.counts()) == ({"running": 1}, {"finished": 1})
    assert raw(url, "SELECT count(*) FROM metrics") == [(2,)]


def test_outcomes_come_in_the_order_of_their_ends(url: str):
    with controlled(url) as study:
        assert study.queries.next_number() == 0
        study.start([make_trial(n) for n in range(5)], "w")
        assert study.queries.next_number() == 5
        study.record([], [finished(4, 0.4)])
        study.record([], [TrialResult(number=0, fence=1, state="diverged", objective=None, error="loss is nan")])
        time.sleep(0.01)  # SQLite's clock counts milliseconds
        study.end([finished(2, 0.2)])
        time.sleep(0.01)
        study.end([TrialResult(number=3, fence=1, state="pruned", objective=0.3)])
        raw(url, "UPDATE trials SET finished_at = '2020-01-01 00:00:00.000000+00' WHERE number = 0")
        ended = study.queries.outcomes(None)
        assert [(o.number, o.state, o.objective) for o in ended] == [
            (0, "diverged", None),
            (4, "finished", 0.4),
            (2, "finished", 0.2),
            (3, "pruned", 0.3),
        ]
        assert ended[0].draws == make_trial(0).draws
        assert study.queries.outcomes(2) == ended[2:]
        assert study.queries.counts() == {"running": 1, "finished": 2, "pruned": 1, "diverged": 1}


def test_the_reports_that_are_kept_are_those_of_all_trials_by_number_and_step(url: str):
    with controlled(url, "thin") as study:
        study.start([make_trial(n) for n in range(3)], "w")
        study.record([make_report(2, 10), make_report(0, 10), make_report(1, 10), make_report(0, 20)])
        study.record([], [finished(2, 0.4)], [saved(1)._replace(number=0, step=20)])
        study.release(held(0, 1))
        assert [(report.number, report.step) for report in study.queries.reports("tvd")] == [(0, 10), (0, 20), (2, 10)]
        assert study.queries.reports("another") == []


@pytest.mark.sampled(1)
def test_more_trials_than_one_statement_can_name(url: str):
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(10_001)], "w")
        assert len(study.record([Report(number=n, fence=1, step=1, metrics=()) for n in range(10_001)])) == 10_001


def test_a_stop_is_requested_from_elsewhere_and_forgotten_when_control_is_taken(url: str):
    with controlled_with_store(url) as (store, study):
        other = store.take_control(new_study(store, "other"), policy="full", objective=OBJECTIVE)
        assert not study.stop_requested()
        request_stop(url, "study")
        assert study.stop_requested()
        assert not other.stop_requested()
        study = store.take_control(study.id, policy="full", objective=OBJECTIVE)
        assert not study.stop_requested()


def test_stopping_an_unknown_study_names_the_known_ones(url: str):
    with controlled(url), pytest.raises(StudyError, match="'nosuch' does not exist; there are study"):
        request_stop(url, "nosuch")


def test_a_heartbeat_is_the_databases_time(url: str):
    with controlled(url) as study:
        study.renew_leases([heard(host="a", device="cuda:0")], 60)
        study.renew_leases([heard(host="b", device="cuda:1", state="done", steps=7, room=9)], 60)
        columns = "study_id, id, host, device, state, steps, room, fence"
        assert raw(url, f"SELECT {columns} FROM workers") == [(study.id, "w", "b", "cuda:1", "done", 7, 9, 1)]
    with open_reader(url) as reader:
        created = reader.studies()["created_at"][0]
    assert abs(datetime.now(UTC) - created) < timedelta(minutes=1)


def test_a_state_out_of_the_vocabulary_is_refused_by_the_database(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
    for statement in (
        "UPDATE trials SET state = 'lost'",
        "UPDATE trials SET objective = 1",
        "UPDATE studies SET state = ''",
    ):
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            raw(url, statement)
