"""A controller whose server goes away: what it writes is written once, when it is back, and by nobody else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

import storage.control.session
from spaces.errors import StorageError, StudyError
from storage import ControlledStudy, open_store
from storage.databases.database import AwayError
from tests.support.databases import (
    OBJECTIVE,
    Server,
    controlled,
    controlled_with_store,
    heard,
    held,
    make_report,
    make_trial,
    new_study,
    raw,
)
from tests.support.fences import ROWS, ending, saved

pytestmark = pytest.mark.fast

KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND pid <> pg_backend_pid()"


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """Yield a server, or a file, which does not go away."""
    with postgres.database() as address:
        yield address


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.control.session, "FIRST_PAUSE", 0.01)


def hang_up(url: str) -> None:
    """End every session of the database but this one."""
    raw(url, KILL.format(url.partition("@/")[2].partition("?")[0]))


@contextmanager
def cutting(url: str, moment: str) -> Iterator[list[str]]:
    """Lose the next transaction's connection at this moment of it; yields what says when that has happened."""
    fired: list[str] = []

    def cut(connection: Connection) -> None:
        if not fired:
            fired.append(moment)
            hang_up(url)

    def after(connection: Connection) -> None:
        """Lose the answer to a commit that was done."""
        if not fired:
            fired.append(moment)
            driver: Any = connection.connection.driver_connection
            driver.commit()
            hang_up(url)

    event.listen(Engine, "commit", after if moment == "after the commit" else cut)
    try:
        yield fired
    finally:
        event.remove(Engine, "commit", after if moment == "after the commit" else cut)


WRITES: dict[str, Callable[[ControlledStudy], object]] = {
    "start": lambda study: study.start([make_trial(0), make_trial(5)], "w"),
    "start in place": lambda study: study.start([make_trial(6)], "w", [replace(ending("pruned", 1), number=2)]),
    "record": lambda study: study.record([make_report(1, 10)], [replace(ending("finished", 1), number=2)]),
    "checkpoint": lambda study: study.record([], [], [saved(1)._replace(number=1)]),
    "end": lambda study: study.end([replace(ending("failed", 1), number=2)]),
    "release": lambda study: study.release(held(1, 2)),
    "rescue": lambda study: study.rescue(held(1, 2)),
    "leases": lambda study: study.renew_leases([heard("silent", seconds=99), heard()], 60),
    "state": lambda study: study.set_state("running"),
    "read": lambda study: study.queries.counts(),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_a_lost_request_or_answer_leaves_what_an_undisturbed_write_leaves(
    write: Callable[[ControlledStudy], object], moment: str, postgres: Server
):
    left: list[object] = []
    for cut in (False, True):
        with postgres.database() as url, controlled(url) as study:
            study.start([make_trial(1), make_trial(2)], "w")
            study.record([make_report(2, 10)])
            if cut:
                with cutting(url, moment) as fired:
                    answer = write(study)
                assert fired
            else:
                answer = write(study)
            workers = raw(url, "SELECT id, state, fence FROM workers ORDER BY id")
            left.append((answer, [raw(url, rows) for rows in ROWS], workers, raw(url, "SELECT steps FROM studies")))
    assert left[0] == left[1]


def test_after_a_loss_the_study_is_locked_again(url: str):
    with controlled(url) as study:
        hang_up(url)
        assert study.queries.counts() == {}
        with open_store(url) as other, pytest.raises(StudyError, match=r"study 'study' is being run by process \d+ on"):
            other.take_control(study.id, policy="full", objective=OBJECTIVE)


def test_who_was_away_while_another_took_over_says_so_and_writes_nothing(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        hang_up(url)
        other = open_store(url)
        other.take_control(study.id, policy="full", objective=OBJECTIVE)
        before = [raw(url, rows) for rows in ROWS]
        with pytest.raises(StudyError, match="study 'study' is being run by process"):
            study.record([make_report(0, 10)])
        other.close()
        with pytest.raises(StudyError, match="study 'study' is being run by process"):
            study.set_state("stopped")
        assert [raw(url, rows) for rows in ROWS] == before


def test_who_was_away_while_another_came_and_went_says_so(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        hang_up(url)
        with open_store(url) as other:
            other.take_control(study.id, policy="full", objective=OBJECTIVE)
        for _ in range(2):
            with pytest.raises(StudyError, match="study 'study' was taken over by another process"):
                study.record([make_report(0, 10)])
        assert raw(url, "SELECT count(*) FROM metrics") == [(0,)]


@pytest.mark.parametrize("host", ["here", 100 * "h"])
def test_a_session_that_the_server_takes_for_alive_is_ended_by_who_had_it(
    url: str, monkeypatch: pytest.MonkeyPatch, host: str
):
    """As when a network goes and comes: the old session keeps its lock until the server notices, minutes later."""
    monkeypatch.setattr("socket.gethostname", lambda: host)
    with controlled_with_store(f"{url}{'&' if '?' in url else '?'}application_name=mine") as (store, study):
        session = store._session
        abandoned = session._connection
        session._connection = session.database.writer()  # the old one stays open, and holds the lock
        session._lock_again()
        assert study.queries.counts() == {}
        driver: Any = abandoned.connection.driver_connection
        with pytest.raises(psycopg.OperationalError):
            driver.execute("SELECT 1")


def test_a_server_that_stays_away_ends_the_run_in_one_line_without_a_password(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(storage.control.session, "AWAY_SECONDS", 0.2)
    with controlled_with_store(url) as (store, study):
        refused = AwayError("postgresql://graft:***@/x: connection refused")
        monkeypatch.setattr(store._session.database, "writer", lambda: (_ for _ in ()).throw(refused))
        hang_up(url)
        with caplog.at_level(logging.WARNING), pytest.raises(AwayError, match=r"; no answer in 0 minutes$") as caught:
            study.queries.counts()
        with pytest.raises(AwayError, match=r"; no answer in 0 minutes$"):
            study.set_state("stopped")
    assert "\n" not in str(caught.value)
    assert "training goes on, and the database is tried again for an hour" in caplog.text


def test_a_server_that_comes_back_and_refuses_ends_the_run_and_all_later_calls(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    with controlled_with_store(url) as (store, study):
        refused = StorageError("fsync is off, so a commit may be lost; switch it on")
        monkeypatch.setattr(store._session.database, "writer", lambda: (_ for _ in ()).throw(refused))
        hang_up(url)
        for _ in range(2):
            with pytest.raises(StorageError, match="fsync is off"):
                study.set_state("stopped")


def test_before_a_study_is_under_control_a_loss_is_told_at_once(url: str):
    with open_store(url) as store:
        hang_up(url)
        with pytest.raises(StorageError, match=r"terminating connection|server closed the connection"):
            new_study(store)


def test_calls_of_other_threads_wait_and_are_answered(url: str):
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(20)], "w")
        hang_up(url)
        threads = [threading.Thread(target=study.record, args=([make_report(number, 10)],)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(240)
        assert raw(url, "SELECT count(DISTINCT trial_id) FROM metrics") == [(20,)]


def test_an_error_that_is_no_loss_is_not_tried_again(url: str):
    with controlled(url) as study:
        raw(url, "ALTER TABLE metrics RENAME TO elsewhere")
        study.start([make_trial(0)], "w")
        with pytest.raises(StorageError, match='relation "metrics" does not exist') as caught:
            study.record([make_report(0, 10)])
        assert not isinstance(caught.value, AwayError)
