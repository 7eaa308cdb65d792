"""A study that this process controls: each transaction is committed before the call returns.

Three rules make them safe, and every method keeps them:

- *Control.* Each transaction that writes first compares the study's own fence, and so fails once
  another process has taken control, whatever became of the lock.
- *Fences.* Each message about a trial has the fence of the start that it comes from. A worker that
  was silent for a minute has lost its trials, and others train them from a later start; its own
  messages carry the old fence and change no row.
- *Idempotence.* A server may commit and die before it answers. The session then makes the same
  transaction again, so each must have the same effect when it is made twice: inserts name their
  keys, updates name the state they start from.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

from sqlalchemy import Connection, select, update

from spaces.errors import ChangedError, StudyError
from spaces.records import (
    Checkpoint,
    QueuedTrial,
    Report,
    State,
    Trial,
    TrialResult,
    TrialStart,
    WorkerStatus,
)
from spaces.settings import History, Objective
from storage.clock import Now
from storage.control import checkpointing, leases, rows
from storage.control.fingerprints import Assigned, FingerprintTable, read_numbers
from storage.control.history import Past, follow
from storage.control.queries import StudyQueries
from storage.control.session import Session, transaction
from storage.control.stored_trials import read_queued
from storage.databases.database import study_topic
from storage.schema import StudyState, checkpoints, fingerprints, studies, trial_id, trials, workers

_RING_SECONDS = 1.0
"""Seconds between two rings for a study."""


class _Plan(NamedTuple):
    """The effect of new reports on the study's history."""

    reports: Sequence[Report]
    superseded: Sequence[tuple[int, int]]
    pasts: Mapping[int, Past]
    """Number -> past of the trial once this is committed."""


@final
class ControlledStudy:
    """The rows of one study, a `search.steering.study_store.StudyStore`; threads may share it."""

    def __init__(
        self,
        session: Session,
        study_id: int,
        *,
        fence: int,
        policy: History,
        objective: Objective,
        version: str = "",
        keep_open: bool = False,
    ) -> None:
        """`fence` is this controller's; `policy` chooses reports to keep, `objective` the best one.

        `version` is Graft's. `keep_open`: the session serves others after this study.
        """
        self.id = study_id
        self.session = session
        self.queries = StudyQueries(session, study_id)
        self._database = session.database
        self._fence = fence
        self._policy: History = policy
        self._objective = objective
        self._pasts: dict[int, Past] = {}
        """Number of a running trial -> the past that its next report is compared with."""
        self._fingerprints = FingerprintTable(study_id, version)
        self._keep_open = keep_open
        self._rang_at = -_RING_SECONDS

    @transaction
    def check_space(self, connection: Connection, space_hash: str) -> None:
        """Raise ChangedError unless the study's space has this hash, read before control was taken."""
        name, current = connection.execute(
            select(studies.c.name, studies.c.space_hash).where(studies.c.id == self.id)
        ).one()
        if current != space_hash:
            raise ChangedError(f"the space of study {name!r} was changed as it was about to run; run it again")

    def start(self, started: Sequence[Trial], worker: str, results: Sequence[TrialResult] = ()) -> dict[int, int]:
        if not started and not results:
            return {}
        numbers, ended = [trial.number for trial in started], [result.number for result in results]
        resumed = [trial_id(self.id, trial.number) for trial in started if trial.checkpoints]

        def write(connection: Connection) -> tuple[dict[int, int], dict[int, Past], dict[int, int]]:
            rows.start(connection, self._database.insert(trials), self.id, started, worker)
            fences = rows.fences_of(connection, self.id, worker, numbers)
            refused = sorted(set(numbers) - fences.keys())
            if refused:
                trials_text = f"trials {refused[:5]} have ended or run elsewhere"
                raise StudyError(f"{trials_text}; {worker} cannot start them")
            self._end(connection, results, rows.fences(connection, self.id, ended))
            self._ring(connection)
            if not resumed:
                return fences, {}, {}
            pasts = checkpointing.read_pasts(connection, resumed)
            return fences, pasts, read_numbers(connection, resumed)

        fences, pasts, prints = self.session.write(self.id, write)
        self._forget_pasts([*numbers, *ended])
        self._pasts.update((trial - trial_id(self.id, 0), past) for trial, past in pasts.items())
        self._fingerprints.resume(prints)
        return fences

    def record(
        self, reports: Sequence[Report], results: Sequence[TrialResult] = (), saved: Sequence[Checkpoint] = ()
    ) -> frozenset[int]:
        numbers = sorted({entry.number for entry in (*reports, *results, *saved)})

        def write(connection: Connection) -> tuple[frozenset[int], _Plan, Assigned]:
            # The rows stay locked until the commit, so that no trial gets another fence meanwhile.
            fences = rows.fences(connection, self.id, numbers)
            plan = self._plan([report for report in reports if fences.get(report.number) == (report.fence, "running")])
            insert = self._database.insert
            assigned = self._fingerprints.assign(connection, insert(fingerprints), plan.reports)
            rows.report(connection, self._database, self.id, plan.reports, assigned.numbers)
            rows.forget(connection, self.id, plan.superseded)
            current = [save for save in saved if fences.get(save.number) == (save.fence, "running")]
            # A trial that resumed from an older file has no checkpoints until it has caught up with
            # its reports: the next resume would delete reports that are already recorded, and the
            # checkpoint would count as progress, which forgives worker crashes.
            pasts = {save.number: plan.pasts.get(save.number) or self._past(save.number) for save in current}
            further = [save for save in current if save.step >= pasts[save.number].last]
            checkpointing.write(connection, insert(checkpoints), self.id, further, pasts)
            self._end(connection, results, fences)
            sent = ((entry.number, entry.fence) for entry in (*reports, *results, *saved))
            written = frozenset(number for number, fence in sent if fence == fences.get(number, (None,))[0])
            return written, plan, assigned

        written, plan, assigned = self.session.write(self.id, write)
        # Only now: each run of `write` must find the pasts as they were before.
        self._pasts.update(plan.pasts)
        self._fingerprints.keep(assigned, plan.reports)
        self._forget_pasts(result.number for result in results)
        return written

    def end(self, results: Sequence[TrialResult]) -> None:
        numbers = [result.number for result in results]

        def write(connection: Connection) -> None:
            self._end(connection, results, rows.fences(connection, self.id, numbers))

        self.session.write(self.id, write)
        self._forget_pasts(numbers)

    def release(self, starts: Sequence[TrialStart]) -> list[QueuedTrial]:
        return self._requeue(starts, crashes=0)

    def rescue(self, starts: Sequence[TrialStart]) -> list[QueuedTrial]:
        return self._requeue(starts, crashes=1)

    def renew_leases(self, seen: Sequence[WorkerStatus], seconds: float) -> list[str]:
        insert = self._database.insert(workers)

        def write(connection: Connection) -> list[str]:
            leases.renew(connection, insert, self.id, self._fence, seen, seconds)
            return leases.expire(connection, self.id, self._fence)

        return self.session.write(self.id, write)

    def set_state(self, state: StudyState) -> None:
        self._update(state=state, updated_at=Now())

    def set_checkpoint_url(self, url: str) -> None:
        """Note the URL of the study's checkpoints for the next launch."""
        self._update(checkpoints=url)

    @transaction
    def stop_requested(self, connection: Connection) -> bool:
        return self._database.stops.is_sent(connection, self.id)

    def close(self) -> None:
        if self._keep_open:
            self.session.unlock(self.id)
        else:
            self.session.close()

    # -- parts of a write ------------------------------------------------------------------------

    def _update(self, **values: Any) -> None:
        this = update(studies).where(studies.c.id == self.id).values(values)
        self.session.write(self.id, lambda connection: connection.execute(this))

    def _requeue(self, starts: Sequence[TrialStart], crashes: int) -> list[QueuedTrial]:
        numbers = [start.number for start in starts]

        def write(connection: Connection) -> list[QueuedTrial]:
            rows.requeue(connection, self.id, starts, crashes)
            return read_queued(connection, self.id, numbers)

        queued = self.session.write(self.id, write)
        self._forget_pasts(numbers)
        return queued

    def _end(
        self, connection: Connection, results: Sequence[TrialResult], fences: Mapping[int, tuple[int, State]]
    ) -> None:
        """Write the results of starts that still run; `fences` as `rows.fences` gives them."""
        current = [result for result in results if fences.get(result.number) == (result.fence, "running")]
        rows.end(connection, self.id, current)
        checkpointing.delete(connection, [trial_id(self.id, result.number) for result in current])
        if current:
            self._ring(connection)

    def _ring(self, connection: Connection) -> None:
        """Tell listeners that trials have started or ended, at most once a second.

        PostgreSQL has all commits that notify wait for one another. Listeners look again anyway.
        """
        now = time.monotonic()
        if now >= self._rang_at + _RING_SECONDS:
            self._rang_at = now
            self._database.ring(connection, study_topic(self.id))

    def _plan(self, reports: Sequence[Report]) -> _Plan:
        """Return the new reports to write, none twice, and the stored ones that they supersede."""
        pasts: dict[int, Past] = {}
        fresh: dict[tuple[int, int], Report] = {}
        superseded: list[tuple[int, int]] = []
        for report in reports:
            past = pasts.get(report.number) or self._past(report.number)
            is_newest = report.step > past.last
            if is_newest or self._policy == "full":
                fresh[report.number, report.step] = report
            if is_newest:
                score = self._objective.cost_in(report)
                pasts[report.number], steps = follow(self._policy, past, report.step, score)
                superseded.extend((report.number, step) for step in steps)
        # A report that a later one of the same call supersedes is neither written nor deleted.
        gone = set(superseded)
        kept = [report for at, report in fresh.items() if at not in gone]
        return _Plan(kept, [at for at in superseded if at not in fresh], pasts)

    def _past(self, number: int) -> Past:
        return self._pasts.get(number) or Past()

    def _forget_pasts(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._pasts.pop(number, None)
            self._fingerprints.forget([number])
