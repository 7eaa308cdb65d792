"""The writing side: a controller's memory, one transaction per call, committed before the call returns.

Every write to a trial says which worker holds it, so that a worker that lost its trials changes nothing; every row has
a key that the caller knows, so that a call whose answer was lost can be made again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import StudyError
from spaces.records import Ending, Outcome, Report, Stage, State, Trial
from spaces.settings import Direction, History, Objective
from spaces.words import shortened
from storage import migrations, rows
from storage.database import Database, find_database
from storage.frames import open_reader
from storage.history import Past, follow, score_of
from storage.schema import Now, StudyState, studies, trials, workers


def open_store(url: str) -> Store:
    """The writing end of a database, created or brought up to this code's schema.

    Raises StorageError if it cannot be written safely, StudyError if another process is writing it.
    """
    database = find_database(url)
    store = Store(database, database.writer())
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Plan(NamedTuple):
    reports: Sequence[Report]
    """To be written."""
    gone: Sequence[tuple[int, int]]
    """(number, step)s to be deleted."""
    pasts: Mapping[tuple[int, int], Past]
    """(study, number) -> what to remember of the trial, once this is committed."""


class Store:
    """Remembers studies and their trials. Safe to call from several threads; calls run one after another."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._connection = connection
        self._turn = threading.Lock()
        self._history: dict[int, tuple[History, Objective]] = {}
        self._pasts: dict[tuple[int, int], Past] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection and the locks; what was recorded stays."""
        with self._turn:
            self._connection.close()
            self._database.close()

    def migrate(self) -> None:
        """Bring the tables up to this code's schema, all steps in one transaction with their record."""
        with self._transaction() as connection:
            if migrations.is_older(connection):
                self._database.check_idle(connection)
            migrations.upgrade(connection, self._database.name)

    def create_study(
        self,
        name: str,
        *,
        space: str,
        space_hash: str,
        objective: Objective,
        seed: int,
        trials: int,
        version: str,
    ) -> int:
        """Write a new study, in state `stopped`, and return its id.

        `space` is the YAML text, `trials` the planned number, `version` Graft's. StudyError if the name is taken, or
        is no word that can stand in a command line, a file's name and a page.
        """
        if not _NAME.fullmatch(name):
            raise StudyError(f"{shortened(repr(name))} must be a word of letters, digits, '.', '_' and '-'")
        row = {
            "name": name,
            "space": space,
            "space_hash": space_hash,
            "objective": str(objective),
            "direction": objective.direction,
            "seed": seed,
            "trials": trials,
            "version": version,
            "state": "stopped",
            "stop_requested": False,
        }
        times = {"created_at": Now(), "updated_at": Now()}
        try:
            with self._transaction() as connection:
                statement = insert(studies).values(**row, **times).returning(studies.c.id)
                return connection.execute(statement).scalar_one()
        except IntegrityError:
            raise StudyError(f"study {name!r} exists already; resume it, or choose another name") from None

    def claim(self, study_id: int, *, policy: History, objective: Objective) -> None:
        """Become the study's only controller and forget earlier stop requests.

        `policy` says which reports are kept, `objective` which of them is the best. Raises StudyError if another
        process runs the study.
        """
        with self._transaction() as connection:
            study = connection.scalar(select(studies.c.name).where(studies.c.id == study_id))
            self._database.lock_study(connection, study_id, str(study))
            self._database.withdraw_stop(connection, study_id)
        self._history[study_id] = (policy, objective)

    def set_state(self, study_id: int, state: StudyState) -> None:
        """Say whether the study is running, was stopped, finished, or failed."""
        with self._transaction() as connection:
            this = update(studies).where(studies.c.id == study_id)
            connection.execute(this.values(state=state, updated_at=Now()))

    def stop_requested(self, study_id: int) -> bool:
        """Whether `request_stop` was called, by any process, since the study was claimed."""
        with self._transaction() as connection:
            return self._database.stop_requested(connection, study_id)

    def start(self, study_id: int, started: Sequence[Trial], worker: str, endings: Sequence[Ending] = ()) -> None:
        """Write trials as running on `worker`, new or queued ones, and verdicts on those whose places they take.

        Raises StudyError, and writes nothing, if one of them has ended or runs elsewhere.
        """
        if not started and not endings:
            return
        numbers = [trial.number for trial in started]
        with self._transaction() as connection:
            rows.start(connection, self._database.insert(trials), study_id, started, worker)
            refused = sorted(set(numbers) - rows.held(connection, study_id, worker, numbers))
            if refused:
                raise StudyError(f"trials {refused[:5]} have ended or run elsewhere; {worker} cannot start them")
            rows.end(connection, study_id, endings)
        self._drop_pasts(study_id, (*numbers, *(ending.number for ending in endings)))

    def record(
        self, study_id: int, worker: str, reports: Sequence[Report], endings: Sequence[Ending] = ()
    ) -> frozenset[int]:
        """Write what `worker` reports, and the verdicts on its trials; a report's `state` is the caller's to judge.

        Returns the numbers, of all that were sent, that the worker held: only they were written. The others were put
        back in the queue, given to another worker, or have ended, and the worker should drop them.
        """
        numbers = sorted({one.number for one in (*reports, *endings)})
        with self._transaction() as connection:
            held = rows.held(connection, study_id, worker, numbers)
            plan = self._plan(study_id, [report for report in reports if report.number in held])
            rows.report(connection, self._database, study_id, plan.reports)
            rows.forget(connection, study_id, plan.gone)
            rows.end(connection, study_id, (ending for ending in endings if ending.number in held))
        self._pasts.update(plan.pasts)
        self._drop_pasts(study_id, (ending.number for ending in endings))
        return held

    def end(self, study_id: int, endings: Sequence[Ending]) -> None:
        """Write the controller's own verdicts on running trials, whoever holds them; an ended trial keeps its state."""
        with self._transaction() as connection:
            rows.end(connection, study_id, endings)
        self._drop_pasts(study_id, (ending.number for ending in endings))

    def requeue(self, study_id: int, worker: str | None, among: Collection[int] | None = None) -> list[int]:
        """Put the running trials of a worker (None: of all, at resume) back in the queue; their numbers.

        `among`: only these, which a worker could not keep; None: all that it had, since it is lost.
        They start again from step 0 and give the same numbers, so their metrics are deleted.
        """
        with self._transaction() as connection:
            numbers = rows.requeue(connection, study_id, worker, among)
        self._drop_pasts(study_id, numbers)
        return numbers

    def queued(self, study_id: int) -> list[list[Stage]]:
        """The lines of descent of the trials that wait to be started again, in order of number; see `rows.lines`."""
        with self._transaction() as connection:
            return rows.queued(connection, study_id)

    def outcomes(self, study_id: int, limit: int | None) -> list[Outcome]:
        """The trials that ended last (None: all), in the order in which they ended: what a sampler learns again."""
        with self._transaction() as connection:
            return rows.outcomes(connection, study_id, limit)

    def reports(self, study_id: int, metric: str) -> list[Report]:
        """The kept reports of trials that ended, with the metrics of this name: what a stopping policy learns again."""
        with self._transaction() as connection:
            return rows.reports(connection, study_id, metric)

    def copied(self, study_id: int) -> dict[int, int]:
        """The trials whose state others took over -> the last step at which one did."""
        with self._transaction() as connection:
            return rows.copied(connection, study_id)

    def created(self, study_id: int) -> int:
        """The number that the study's next new trial gets."""
        with self._transaction() as connection:
            return rows.created(connection, study_id)

    def holes(self, study_id: int) -> list[range]:
        """The numbers below `created` that no trial has, ascending."""
        with self._transaction() as connection:
            return rows.holes(connection, study_id)

    def best(self, study_id: int, direction: Direction) -> tuple[float, int] | None:
        """The best objective and its trial's number, the lowest of several; None if no trial has an objective."""
        with self._transaction() as connection:
            return rows.best(connection, study_id, direction)

    def counts(self, study_id: int) -> dict[State, int]:
        """How many trials are in each state that occurs."""
        with self._transaction() as connection:
            return rows.counts(connection, study_id)

    def heartbeat(
        self, study_id: int, worker: str, *, host: str, device: str, state: str, steps: int = 0, room: int = 0
    ) -> None:
        """Write that the worker was heard of, by the database's clock.

        `steps`: training steps of its lanes since it started; `room`: what they would have been with no lane free.
        """
        seen = {"host": host, "device": device, "state": state, "steps": steps, "room": room}
        with self._transaction() as connection:
            rows.heartbeat(connection, self._database.insert(workers), study_id, worker, seen)

    def count_lane_steps(self, study_id: int, counts: Mapping[str, tuple[int, int]]) -> None:
        """Write worker -> (steps, room), as of `heartbeat`, without having heard of the workers."""
        with self._transaction() as connection:
            rows.lane_steps(connection, study_id, counts)

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        """Commit at the end, or nothing: what was committed before stays."""
        with self._turn, self._database.errors_in_words(), self._connection.begin():
            yield self._connection

    def _plan(self, study_id: int, reports: Sequence[Report]) -> _Plan:
        """What the study's policy makes of new reports. One that was recorded before is not written again."""
        assert study_id in self._history, "claim the study before recording"
        policy, objective = self._history[study_id]
        if policy == "full":
            return _Plan(reports, [], {})
        pasts: dict[tuple[int, int], Past] = {}
        fresh: dict[tuple[int, int], Report] = {}
        gone: list[tuple[int, int]] = []
        for report in reports:
            key = (study_id, report.number)
            past = pasts.get(key) or self._pasts.get(key) or Past()
            if report.step > past.last:
                fresh[report.number, report.step] = report
                pasts[key], steps = follow(policy, past, report.step, score_of(report, objective))
                gone.extend((report.number, step) for step in steps)
        kept = fresh.keys() - set(gone)
        return _Plan([r for at, r in fresh.items() if at in kept], [at for at in gone if at not in fresh], pasts)

    def _drop_pasts(self, study_id: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._pasts.pop((study_id, number), None)


def pending(url: str) -> tuple[str, Sequence[str]]:
    """The schema of a database, and the steps from there to this code's, a line each; none if it is this code's.

    Raises StorageError if there is no database, none of this program's, or a newer one.
    """
    database = find_database(url)
    with database.reader() as connection, database.errors_in_words(), connection.begin():
        if not migrations.is_older(connection):
            migrations.check(connection, database.name)
        found = str(migrations.version_of(connection))
    return found, migrations.steps_from(found)


def bring_up(url: str) -> None:
    """Bring a database of an older schema to this code's; any other one is only looked at.

    Raises StorageError if there is none, StudyError if it is older and another process is writing it.
    """
    database = find_database(url)
    with database.reader() as connection, database.errors_in_words(), connection.begin():
        older = migrations.is_older(connection)
    if older:
        open_store(url).close()


def request_stop(url: str, study: str) -> None:
    """Ask the controller of a study, in whatever process it runs, to stop; StudyError if there is no such study."""
    with open_reader(url) as reader:
        reader.database.request_stop(reader.study(study)["id"])
