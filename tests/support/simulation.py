"""The simulated study: its machine, its disks and its lives."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from search.steering.controller import Controller
from search.steering.requeueing import QUARANTINED_AFTER, SUSPECTED_AFTER
from search.steering.study_store import StudyQueries, StudyStore
from spaces.records import (
    TERMINAL,
    Checkpoint,
    Directives,
    Metric,
    QueuedTrial,
    Report,
    Trial,
    TrialResult,
    TrialStart,
    WorkerStatus,
)
from spaces.space import Space
from storage import Store, open_store
from tests.support.controller import POLICIES, SAMPLERS, FakeWorker, Row, Rows, loss
from tests.support.databases import new_study
from tests.support.search_spaces import CONDITIONAL, PLAIN, space

Answer = TypeVar("Answer")
POISON_STEP = 20
LARGEST = 24


class CrashError(Exception):
    """The controller's process dies."""


class Disk(Rows):
    """A database that outlives controllers: at its n-th write from now the controller dies, before or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.is_done = False
        self.starts: set[tuple[int, int]] = set()
        self.silent_since: dict[str, float] = {}

    def take_over(self) -> None:
        """End the leases of workers of an earlier fence."""
        self.lease_until.clear()
        self.lost.clear()

    def discard(self) -> None:
        """Nothing is left of it."""

    def _die(self, *, after: bool) -> None:
        self.left -= not after
        if not self.left and self.is_done == after:
            self.left = -1
            raise CrashError

    def start(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = ()) -> dict[int, int]:
        self._die(after=False)
        fences = super().start(trials, worker, endings)
        assert not self.starts & fences.items(), "a fence belongs to one start"
        self.starts |= set(fences.items())
        self._die(after=True)
        return fences

    def record(self, reports: Sequence[Report], endings: Sequence[TrialResult], saved: Sequence[Checkpoint]) -> None:
        self._die(after=False)
        super().record(reports, endings, saved)
        self._die(after=True)

    def release(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        """Record a rescue, as that counts as one, too."""
        self._die(after=False)
        waiting = super().release(held)
        self._die(after=True)
        return waiting

    def renew_leases(self, heard: Sequence[WorkerStatus], term: float) -> list[str]:
        self._die(after=False)
        lost = super().renew_leases(heard, term)
        self._die(after=True)
        return lost


class SqliteDisk(StudyStore):
    """The same with the tables and transactions of `storage` on SQLite, whose clock is the simulation's.

    Each write is followed by a look at what ended before: nothing of it may change.
    """

    def __init__(self, space: Space) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="graft-simulation-"))
        shutil.copy(_empty_database(), self._folder / "graft.db")
        self._url = f"sqlite:///{self._folder}/graft.db"
        self._objective = space.search.objective
        self.now, self.left, self.is_done, self.stopping = 0.0, 0, False, False
        self.started: dict[int, Trial] = {}
        self._starts: set[tuple[int, int]] = set()
        self._ended: dict[int, tuple[Any, ...]] = {}
        self._store: Store | None = None
        with open_store(self._url) as store:
            self._study_id = new_study(store)

    def take_over(self) -> None:
        """Claim the study, as the next process does when one has died."""
        if self._store:
            self._store.close()
        self._store = open_store(self._url)
        connection: Any = self._store._session._connection  # pyright: ignore[reportPrivateUsage] - no door for a clock
        driver = connection.connection.driver_connection
        driver.execute("PRAGMA synchronous=OFF")  # a simulated power does not fail
        driver.create_function("strftime", -1, self.read_clock)
        self._study = self._store.take_control(self._study_id, policy="full", objective=self._objective)

    def discard(self) -> None:
        """Nothing is left of it."""
        if self._store:
            self._store.close()
        shutil.rmtree(self._folder)

    @property
    def clock(self) -> float:
        """The time that the database tells, in seconds."""
        return self.now

    def read_clock(self, form: str, when: str, shift: str = "0 seconds") -> str:
        """Stand in for SQLite's function `strftime`."""
        assert (form, when) == ("%Y-%m-%d %H:%M:%f000", "now")
        then = datetime(2026, 1, 1) + timedelta(seconds=self.clock + float(shift.removesuffix(" seconds")))
        return f"{then:%Y-%m-%d %H:%M:%S.%f}"

    def _written(self, call: Callable[[], Answer]) -> Answer:
        self.left -= 1
        if not self.left and not self.is_done:
            self.left = -1
            raise CrashError
        answer = call()
        self._look()
        if not self.left:
            self.left = -1
            raise CrashError
        return answer

    def _look(self) -> None:
        rows = self._rows("SELECT number, state, objective, steps, error, finished_at FROM trials")
        ended = {number: rest for number, *rest in rows if rest[0] in TERMINAL}
        assert {number: ended.get(number) for number in self._ended} == self._ended, "what ended has changed"
        self._ended = ended

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self._folder / "graft.db")) as connection:
            return connection.execute(query).fetchall()

    @property
    def rows(self) -> dict[int, Row]:
        """What is stored, as the dict has it."""
        reports: dict[int, list[Report]] = {}
        for number, step, name, variant, condition, value in self._rows(
            "SELECT number, step, name, variant, condition, value FROM metrics JOIN trials ON trials.id = trial_id "
            "ORDER BY number, step"
        ):
            metrics = (Metric(name, variant, condition, value),)
            reports.setdefault(number, []).append(Report(number=number, step=step, metrics=metrics))
        return {
            number: Row(
                self.started[number],
                worker or "",
                fence=fence,
                state=state,
                objective=objective,
                reports=reports.get(number, []),
                terminal_events=state in TERMINAL,
                crashes=crashes,
            )
            for number, worker, fence, state, objective, crashes in self._rows(
                "SELECT number, worker, fence, state, objective, deaths FROM trials"
            )
        }

    @property
    def queries(self) -> StudyQueries:
        return self._study.queries

    def start(self, trials: Sequence[Trial], worker: str, endings: Sequence[TrialResult] = ()) -> dict[int, int]:
        self.started.update((trial.number, trial) for trial in trials)
        fences = self._written(lambda: self._study.start(trials, worker, endings))
        assert not self._starts & fences.items(), "a fence belongs to one start"
        self._starts |= set(fences.items())
        return fences

    def record(
        self, reports: Sequence[Report], endings: Sequence[TrialResult], saved: Sequence[Checkpoint]
    ) -> frozenset[int]:
        return self._written(lambda: self._study.record(reports, endings, saved))

    def end(self, endings: Sequence[TrialResult]) -> None:
        self._study.end(endings)
        self._look()

    def release(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        return self._written(lambda: self._study.release(held))

    def rescue(self, held: Sequence[TrialStart]) -> list[QueuedTrial]:
        return self._written(lambda: self._study.rescue(held))

    def renew_leases(self, heard: Sequence[WorkerStatus], term: float) -> list[str]:
        return self._written(lambda: self._study.renew_leases(heard, term))

    def stop_requested(self) -> bool:
        return self.stopping

    def set_state(self, state: Literal["running", "stopped", "finished", "failed"]) -> None:
        self._study.set_state(state)

    def close(self) -> None:
        """Close the controller; the next one claims the study again."""


@cache
def _empty_database() -> Path:
    """Return a file with all tables, made once."""
    folder = Path(tempfile.mkdtemp(prefix="graft-simulation-"))
    atexit.register(shutil.rmtree, folder)
    open_store(f"sqlite:///{folder}/empty.db").close()
    return folder / "empty.db"


@dataclass
class Life:
    """A process that may train."""

    worker: FakeWorker
    frozen: bool = False
    last_beat: float = 0.0


class Simulation(RuleBasedStateMachine):
    """One study, its controllers one after another, and its workers."""

    make_disk: Callable[[Space], Disk | SqliteDisk] = staticmethod(lambda _: Disk())

    @initialize(
        sampler=st.sampled_from(SAMPLERS),
        policy=st.sampled_from(POLICIES),
        body=st.sampled_from([PLAIN, CONDITIONAL]),
        group=st.sampled_from([1, 4]),
        trials=st.integers(1, LARGEST),
        poison=st.sets(st.integers(0, LARGEST - 1), max_size=1),
    )
    def launch(self, sampler: str, policy: str, body: str, group: int, trials: int, poison: set[int]) -> None:
        self.space = space(body, sampler=sampler, stopping=policy, group=group, trials=trials)
        self.disk, self.poison, self.names = self.make_disk(self.space), poison, 0
        self.lives: list[Life] = []
        self.begin()
        self.join(lanes=3)

    def begin(self) -> None:
        """Let a controller take the study over; it may die at once, and then the next one does."""
        while True:
            self.disk.take_over()
            try:
                self.controller = Controller.begin(self.space, self.disk, lambda: self.disk.now)
                return
            except CrashError:
                continue

    @rule(lanes=st.integers(1, 5))
    def join(self, lanes: int) -> None:
        """Start a worker under a name of its own."""
        self.names += 1
        self.lives.append(Life(FakeWorker(f"w{self.names}", lanes), last_beat=self.disk.now))

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), turns=st.integers(1, 8))
    def work(self, data: st.DataObject, turns: int) -> None:
        """Workers that are not frozen take turns at random; some lanes are slower, some answers never arrive."""
        for _ in range(turns):
            awake = [life for life in self.lives if not life.frozen]
            if awake:
                life = data.draw(st.sampled_from(awake))
                idle = data.draw(st.sets(st.integers(0, LARGEST - 1), max_size=3))
                self.speak(life, idle, heard=data.draw(st.sampled_from([True] * 9 + [False])))

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        """Let a worker write a checkpoint and tell of it."""
        awake = [life for life in self.lives if not life.frozen]
        if awake:
            self.speak(data.draw(st.sampled_from(awake)), set(range(LARGEST)), heard=True, saves=True)

    def speak(self, life: Life, idle: set[int], *, heard: bool, saves: bool = False) -> None:
        """Train, unless a poisonous trial takes the worker along; then exchange, unless the controller dies of it."""
        worker = life.worker
        reports = worker.train([number for number in worker.lanes if number not in idle])
        if any(report.number in self.poison and report.step == POISON_STEP for report in reports):
            self.die(life, noticed=True)
            return
        offer = replace(worker.offer(), saved=checkpoints(worker) if saves else ())
        try:
            directives = self.controller.exchange(reports, offer)
        except CrashError:
            self.crash()
            return
        if directives.lease_lost or directives.done:
            self.lives.remove(life)
        elif heard:
            self.obey(life, directives)

    def obey(self, life: Life, directives: Directives) -> None:
        """Assert that a worker never trains two starts of a trial, nor another trial beside a suspected one."""
        life.worker.obey(directives)
        deaths = [self.disk.rows[number].crashes for number in life.worker.lanes]
        assert len(deaths) == 1 or max(deaths, default=0) < SUSPECTED_AFTER

    def die(self, life: Life, *, noticed: bool) -> None:
        """End a worker's process; whoever started it may see that."""
        self.lives.remove(life)
        if noticed:
            self.lost(life.worker.name)

    def lost(self, name: str) -> None:
        try:
            self.controller.handle_crash(name)
        except CrashError:
            self.crash()

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), noticed=st.booleans())
    def kill(self, data: st.DataObject, noticed: bool) -> None:
        """SIGKILL."""
        self.die(data.draw(st.sampled_from(self.lives)), noticed=noticed)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def freeze_or_thaw(self, data: st.DataObject) -> None:
        """SIGSTOP, SIGCONT: one that thaws goes on with what it thinks is its own."""
        life = data.draw(st.sampled_from(self.lives))
        life.frozen = not life.frozen

    @rule(seconds=st.sampled_from([1, 5, 10, 11, 30, 45, 61, 200]))
    def wait(self, seconds: int) -> None:
        """Time passes, and those who live say so every ten seconds, before the sweep does its part."""
        for _ in range(-(-seconds // 10)):
            self.disk.now += min(seconds, 10)
            for life in [life for life in self.lives if not life.frozen]:
                if not self.controller.renew(life.worker.name):
                    self.lives.remove(life)
                else:
                    life.last_beat = self.disk.now
            try:
                self.controller.sweep()
            except CrashError:
                self.crash()
                return

    @rule(write=st.integers(1, 6), is_done=st.booleans())
    def arm(self, write: int, is_done: bool) -> None:
        """Arm the controller to die at one of its next writes: before the commit, or after it."""
        self.disk.left, self.disk.is_done = write, is_done

    @rule()
    def crash(self) -> None:
        """Let the controller die with its workers; another takes the study over."""
        self.lives.clear()
        self.begin()

    @rule()
    def stop(self) -> None:
        """Stop the study; all workers hear of it, and it is resumed."""
        self.disk.stopping = True
        for life in [life for life in self.lives if not life.frozen]:
            while life in self.lives:
                self.speak(life, set(range(LARGEST)), heard=True, saves=life.worker.width > 2)
        self.disk.stopping = False
        self.crash()

    @invariant()
    def the_controller_and_the_database_agree(self) -> None:
        if not hasattr(self, "disk"):
            return
        counts = self.controller.progress().counts
        for state in ("running", "finished", "pruned", "diverged", "failed"):
            assert counts.get(state, 0) == sum(row.state == state for row in self.disk.rows.values())

    @invariant()
    def who_may_train_holds_what_it_trains(self) -> None:
        """Two workers that are both within 45 seconds of an accepted renewal never have the same trial."""
        if not hasattr(self, "disk"):
            return
        trained = [
            number
            for life in self.lives
            if life.last_beat > self.disk.now - 45
            for number, (trial, _) in life.worker.lanes.items()
            if self.disk.rows[number].fence == trial.fence
        ]
        assert len(trained) == len(set(trained))

    def teardown(self) -> None:
        """From here on all goes well, but for the poison."""
        if hasattr(self, "disk"):
            try:
                self.settle()
            finally:
                self.disk.discard()

    def settle(self) -> None:
        self.disk.left = -1
        for life in self.lives:
            life.frozen = False
        turns = 0
        while not self.settled():
            if not self.lives:
                self.join(lanes=4)
            for life in list(self.lives):
                self.speak(life, set(), heard=True)
            self.wait(10)
            turns += 1
            assert turns < 500, "the study does not end"
        self.audit()

    def settled(self) -> bool:
        counts = self.controller.progress().counts
        return sum(counts.get(state, 0) for state in TERMINAL) == self.space.search.trials

    def audit(self) -> None:
        """Every number once and ended once; what is stored is what the trial gives alone."""
        rows = self.disk.rows
        assert sorted(rows) == list(range(self.space.search.trials))
        for number, row in rows.items():
            assert row.terminal_events == 1
            assert row.state != "failed" or row.crashes >= QUARANTINED_AFTER
            assert row.state != "finished" or number not in self.poison
            steps = [report.step for report in row.reports]
            assert steps == [10, 20, 30][: len(steps)], "no gap, nothing doubled"
            assert row.state != "finished" or len(steps) == 3
            values = [loss(row.trial, step) for step in steps]
            assert [report.metrics[0].value for report in row.reports] == values
            assert row.objective == (None if row.state in ("diverged", "failed") else min(values))


def checkpoints(worker: FakeWorker) -> tuple[Checkpoint, ...]:
    """Of the lanes that have made a step here."""
    return tuple(
        Checkpoint(number=number, fence=trial.fence, step=step, path=worker.name, row=row, sha256="")
        for row, (number, (trial, step)) in enumerate(worker.lanes.items())
        if step > worker.first_step(trial)
    )


MANY = settings(max_examples=300, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class SqliteSimulation(Simulation):
    """The same on SQLite."""

    make_disk = SqliteDisk
