"""The writing side: a controller's memory, one transaction per call, committed before the call returns.

Every write to a trial says which start of it (its fence) it comes from, so that who lost it changes nothing; every row
has a key that the caller knows, so that a transaction whose answer was lost is made again. That is done here: while a
server does not answer, a call on a study that was claimed waits, for up to an hour, and goes on when it does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from sqlalchemy import Connection, insert, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import StudyError
from spaces.messages import shortened
from spaces.records import (
    Checkpoint,
    Outcome,
    QueuedTrial,
    Report,
    State,
    StoredTrial,
    Trial,
    TrialResult,
    TrialStart,
    WorkerStatus,
)
from spaces.settings import Direction, History, Objective
from storage import checkpointing, leases, migrations, rows
from storage.database import Database, find_database
from storage.frames import open_reader
from storage.history import Past, follow, score_of
from storage.schema import Now, StudyState, checkpoints, studies, trial_id, trials, workers
from storage.session import Session


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


class _Claim(NamedTuple):
    """A study that this process alone runs."""

    fence: int
    policy: History
    objective: Objective


class Store:
    """Remembers studies and their trials. Safe to call from several threads; calls run one after another."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._session = Session(database, connection)
        self._claims: dict[int, _Claim] = {}
        self._pasts: dict[tuple[int, int], Past] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection and the locks; what was recorded stays."""
        self._session.close()

    def migrate(self) -> None:
        """Bring the tables up to this code's schema, all steps in one transaction with their record."""

        def act(connection: Connection) -> None:
            if migrations.is_older(connection):
                self._database.check_idle(connection)
            migrations.upgrade(connection, self._database.name)

        self._session.transact(act)

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
        statement = insert(studies).values(**row, **times).returning(studies.c.id)
        try:
            return self._session.transact(lambda connection: connection.execute(statement).scalar_one())
        except IntegrityError:
            raise StudyError(f"study {name!r} exists already; resume it, or choose another name") from None

    def claim(self, study_id: int, *, policy: History, objective: Objective) -> None:
        """Become the study's only controller and forget earlier stop requests.

        `policy` says which reports are kept, `objective` which of them is the best. Raises StudyError if another
        process runs the study.
        """

        def act(connection: Connection) -> int:
            self._database.withdraw_stop(connection, study_id)
            count = update(studies).where(studies.c.id == study_id).values(fence=studies.c.fence + 1)
            fence = connection.execute(count.returning(studies.c.fence)).scalar_one()
            leases.orphan(connection, study_id, fence)
            return fence

        self._claims[study_id] = _Claim(self._session.lock(study_id, act), policy, objective)

    def set_state(self, study_id: int, state: StudyState) -> None:
        """Say whether the study is running, was stopped, finished, or failed."""
        this = update(studies).where(studies.c.id == study_id).values(state=state, updated_at=Now())
        self._session.transact(lambda connection: connection.execute(this))

    def set_checkpoints(self, study_id: int, place: str) -> None:
        """Note where the study's checkpoints go, for who resumes it."""
        this = update(studies).where(studies.c.id == study_id).values(checkpoints=place)
        self._session.transact(lambda connection: connection.execute(this))

    def stop_requested(self, study_id: int) -> bool:
        """Whether `request_stop` was called, by any process, since the study was claimed."""
        return self._session.transact(lambda connection: self._database.stop_requested(connection, study_id))

    def start(
        self, study_id: int, started: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = ()
    ) -> dict[int, int]:
        """Write trials as running on `worker`, new or queued ones, and verdicts on those whose places they take.

        Returns number -> fence of each start. Raises StudyError, and writes nothing, if one of them has ended or runs
        elsewhere.
        """
        if not started and not endings:
            return {}
        numbers = [trial.number for trial in started]
        going_on = [trial_id(study_id, trial.number) for trial in started if trial.checkpoints]

        def act(connection: Connection) -> tuple[dict[int, int], dict[int, Past]]:
            rows.start(connection, self._database.insert(trials), study_id, started, worker)
            fences = rows.fences_of(connection, study_id, worker, numbers)
            refused = sorted(set(numbers) - fences.keys())
            if refused:
                raise StudyError(f"trials {refused[:5]} have ended or run elsewhere; {worker} cannot start them")
            _end(connection, study_id, endings, rows.fences(connection, study_id, [one.number for one in endings]))
            return fences, checkpointing.pasts(connection, going_on) if going_on else {}

        fences, pasts = self._session.transact(act)
        self._drop_pasts(study_id, (*numbers, *(ending.number for ending in endings)))
        self._pasts.update(((study_id, trial - trial_id(study_id, 0)), past) for trial, past in pasts.items())
        return fences

    def record(
        self,
        study_id: int,
        reports: Sequence[Report],
        endings: Sequence[TrialResult] = (),
        saved: Sequence[Checkpoint] = (),
    ) -> frozenset[int]:
        """Write reports, verdicts on their trials, and checkpoints; a report's `state` is the caller's to judge.

        Returns the numbers, of all that were sent, whose fence is the trial's own: only they were written, now or
        when the same was sent before. The others were started again, and who sent them should drop them.
        """
        numbers = sorted({one.number for one in (*reports, *endings, *saved)})

        def act(connection: Connection) -> tuple[frozenset[int], _Plan]:
            known = rows.fences(connection, study_id, numbers)
            plan = self._plan(study_id, [one for one in reports if known.get(one.number) == (one.fence, "running")])
            rows.report(connection, self._database, study_id, plan.reports)
            rows.forget(connection, study_id, plan.gone)
            self._save(connection, study_id, [s for s in saved if known.get(s.number) == (s.fence, "running")], plan)
            _end(connection, study_id, endings, known)
            sent = ((one.number, one.fence) for one in (*reports, *endings, *saved))
            return frozenset(number for number, fence in sent if fence == known.get(number, (None,))[0]), plan

        held, plan = self._session.transact(act)
        self._pasts.update(plan.pasts)
        self._drop_pasts(study_id, (ending.number for ending in endings))
        return held

    def end(self, study_id: int, endings: Sequence[TrialResult]) -> None:
        """Write the controller's own verdicts on running trials; of starts that are over, none."""

        def act(connection: Connection) -> None:
            _end(connection, study_id, endings, rows.fences(connection, study_id, [one.number for one in endings]))

        self._session.transact(act)
        self._drop_pasts(study_id, (ending.number for ending in endings))

    def running(self, study_id: int) -> list[TrialStart]:
        """The trials in training, in order of number: at a claim, those that the last controller left."""
        return self._session.transact(lambda connection: rows.running(connection, study_id))

    def release(self, study_id: int, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        """Put trials that their workers gave back in the queue; what is known of them, in order of number.

        A trial goes on from its newest checkpoint, or else from step 0, and gives the same numbers: later metrics are
        deleted. One whose fence is another's is left alone.
        """
        return self._requeue(study_id, held, deaths=0)

    def rescue(self, study_id: int, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        """As `release`, for trials whose worker died: that is counted."""
        return self._requeue(study_id, held, deaths=1)

    def queued(self, study_id: int) -> list[tuple[list[StoredTrial], QueuedTrial]]:
        """The trials that wait to be started again, in order of number, each with its line of descent."""
        return self._session.transact(lambda connection: rows.queued(connection, study_id))

    def checkpoint_paths(self, study_id: int) -> frozenset[str]:
        """The files that a trial of the study can go on from."""
        return self._session.transact(lambda connection: checkpointing.paths(connection, study_id))

    def outcomes(self, study_id: int, limit: int | None) -> list[Outcome]:
        """The trials that ended last (None: all), in the order in which they ended: what a sampler learns again."""
        return self._session.transact(lambda connection: rows.outcomes(connection, study_id, limit))

    def reports(self, study_id: int, metric: str) -> list[Report]:
        """The kept reports of trials that ended, with the metrics of this name: what a stopping policy learns again."""
        return self._session.transact(lambda connection: rows.reports(connection, study_id, metric))

    def copied(self, study_id: int) -> dict[int, int]:
        """The trials whose state others took over -> the last step at which one did."""
        return self._session.transact(lambda connection: rows.copied(connection, study_id))

    def created(self, study_id: int) -> int:
        """The number that the study's next new trial gets."""
        return self._session.transact(lambda connection: rows.created(connection, study_id))

    def holes(self, study_id: int) -> list[range]:
        """The numbers below `created` that no trial has, ascending."""
        return self._session.transact(lambda connection: rows.holes(connection, study_id))

    def best(self, study_id: int, direction: Direction) -> tuple[float, int] | None:
        """The best objective and its trial's number, the lowest of several; None if no trial has an objective."""
        return self._session.transact(lambda connection: rows.best(connection, study_id, direction))

    def counts(self, study_id: int) -> dict[State, int]:
        """How many trials are in each state that occurs."""
        return self._session.transact(lambda connection: rows.counts(connection, study_id))

    def leases(self, study_id: int, heard: Sequence[WorkerStatus], term: float) -> list[str]:
        """Let workers hold their trials for `term` seconds from when they were heard of, by the database's clock.

        Then says whose time was over, now or earlier under this claim; they stay lost.
        """
        claim = self._claims[study_id].fence

        def act(connection: Connection) -> list[str]:
            leases.renew(connection, self._database.insert(workers), study_id, claim, heard, term)
            return leases.expire(connection, study_id, claim)

        return self._session.transact(act)

    def _requeue(self, study_id: int, held: Sequence[TrialStart], deaths: int) -> list[QueuedTrial]:
        def act(connection: Connection) -> list[QueuedTrial]:
            rows.requeue(connection, study_id, held, deaths)
            return rows.waiting(connection, study_id, [one.number for one in held])

        waiting = self._session.transact(act)
        self._drop_pasts(study_id, (one.number for one in held))
        return waiting

    def _save(self, connection: Connection, study_id: int, saved: Sequence[Checkpoint], plan: _Plan) -> None:
        """Write checkpoints, but not of a trial that went back and is not yet where its reports had been."""
        keys = {one.number: (study_id, one.number) for one in saved}
        pasts = {number: plan.pasts.get(key) or self._pasts.get(key) or Past() for number, key in keys.items()}
        further = [one for one in saved if one.step >= pasts[one.number].last]
        checkpointing.add(connection, self._database.insert(checkpoints), study_id, further, pasts)

    def _plan(self, study_id: int, reports: Sequence[Report]) -> _Plan:
        """What the study's policy makes of new reports. One that was recorded before is not written again."""
        assert study_id in self._claims, "claim the study before recording"
        _, policy, objective = self._claims[study_id]
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


def _end(
    connection: Connection, study_id: int, endings: Sequence[TrialResult], known: Mapping[int, tuple[int, State]]
) -> None:
    """Write the verdicts on starts that run; `known`: number -> fence and state, as `rows.fences` gives them."""
    these = [ending for ending in endings if known.get(ending.number) == (ending.fence, "running")]
    rows.end(connection, study_id, these)
    checkpointing.drop(connection, [trial_id(study_id, ending.number) for ending in these])


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
