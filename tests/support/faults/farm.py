"""A launcher of toy workers: controller, storage and the way of a pool are real, the training is not.

It is forked from a process that has imported everything, so that a killed one is back in a tenth of a second.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from graft.launching.enrolling import enrol
from graft.plugins.families import families
from search.steering import leases
from spaces import load
from spaces.errors import GraftError
from spaces.records import Directives, Offer, Report
from tests.support.faults.history import Event, History
from tests.support.faults.steering import STEERINGS, Steering
from tests.support.faults.toy import BEAT_SECONDS, LEASE_SECONDS, SELF_STOP_SECONDS, SPACE, STUDY, SWEEP_SECONDS
from workers.pool import heartbeat

PARTING_SECONDS = 1.0
"""A worker that is frozen when the study is done does not hear of it, and holds nothing that anybody waits for."""
LOG = "launcher.log"
FATES = ("exchange unheard", "exchange unanswered", "exchange repeated")
"""The connection breaks before the study hears of an exchange, or before the worker has the answer; or the answer is
lost and the worker says the same again. Who loses a connection is replaced."""
CLOCK = "clock jump"
"""A file with so many seconds."""
DONE, FAILED = 0, 2
"""Exit statuses of a launcher: the study is finished; an error that is a line of the log."""
_ROOT = Path(__file__).parents[3]

families()  # these two take seconds and are done before the fork
importlib.import_module("search.steering.controller")


@dataclass(frozen=True, kw_only=True)
class Farm:
    """What a launcher is to run, the same at every launch."""

    url: str
    trials: int
    folder: Path
    """Of the histories."""
    workers: int
    lanes: int
    """Of each worker."""
    pace: float
    """Seconds that a step takes."""
    steering: str = "honest"
    """One of STEERINGS."""


def launch(farm: Farm) -> None:
    """Run the study to its end; the process ends with DONE or FAILED."""
    leases.LEASE_SECONDS, leases.SWEEP_SECONDS = LEASE_SECONDS, SWEEP_SECONDS  # of this process alone
    heartbeat.BEAT_SECONDS, heartbeat.SELF_STOP_SECONDS = BEAT_SECONDS, SELF_STOP_SECONDS
    history = History(farm.folder, f"launcher-{os.getpid()}")
    try:
        enrol(farm.url, STUDY, load(str(SPACE), families(), {"search.trials": str(farm.trials)}))
        steering = STEERINGS[farm.steering](farm.url, STUDY)
        history.add(Event(kind="opened", process=os.getpid()))
        try:
            Crew(farm, steering).work()
            standing = steering.progress()
        finally:
            steering.close()
    except GraftError as error:
        with (farm.folder / LOG).open("a") as log:
            print(error, file=log)
        sys.exit(FAILED)
    number = -1 if standing.best_number is None else standing.best_number
    history.add(Event(kind="closed", number=number, best=standing.best))


class Crew:
    """The workers of a launcher, each in its slot; one that dies is replaced by one of another name."""

    def __init__(self, farm: Farm, steering: Steering) -> None:
        self._farm = farm
        self._steering = steering
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._over = threading.Event()
        """The study is done, or an error ended the run."""
        self._failure: BaseException | None = None

    def work(self) -> None:
        """Until the study is done; the first error of the study ends all and is raised."""
        slots = [threading.Thread(target=self._fill, args=(slot,)) for slot in range(self._farm.workers)]
        for slot in slots:
            slot.start()
        while not self._over.wait(SWEEP_SECONDS):
            self._try(self._jump)
            self._try(self._steering.sweep)
        deadline = time.monotonic() + PARTING_SECONDS
        for slot in slots:
            slot.join(max(0.0, deadline - time.monotonic()))
        for process in [*self._processes]:
            process.kill()
        for slot in slots:
            slot.join()
        if self._failure:
            raise self._failure

    def _jump(self) -> None:
        """Move the database's clock once, when the storm asks for it by a file."""
        clock = self._farm.folder / CLOCK
        with suppress(FileNotFoundError):
            seconds = float(clock.read_text())
            clock.unlink()
            self._steering.jump(seconds)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._over.set()

    def _fill(self, slot: int) -> None:
        """Employ one worker after the other."""
        while not self._over.is_set():
            name = f"toy-{slot}-{uuid.uuid4().hex[:8]}"
            with self._employed(name) as calls:
                self._serve(calls)
            if not self._over.is_set():
                self._try(lambda worker=name: self._steering.handle_crash(worker))

    @contextmanager
    def _employed(self, name: str) -> Generator[Connection]:
        """Yield a worker's process, and our end of the connection over which it calls."""
        farm = self._farm
        calls, their_calls = Pipe()
        beats, their_beats = Pipe()
        theirs = [their_calls.fileno(), their_beats.fileno()]
        arguments = [name, farm.lanes, farm.pace, farm.folder, *theirs]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.faults.worker", *map(str, arguments)], cwd=_ROOT, pass_fds=theirs
        )
        self._processes.add(process)
        their_calls.close()
        their_beats.close()
        threading.Thread(target=self._renew, args=(name, beats), daemon=True).start()
        try:
            yield calls
        finally:
            process.kill()
            process.wait()
            calls.close()
            self._processes.discard(process)

    def _serve(self, calls: Connection) -> None:
        """Answer a worker until it is gone."""
        while True:
            try:
                reports, offer = calls.recv()
                fate = self._fate()
                if fate == "exchange unheard":
                    return
                answer = self._answer(reports, offer)
                if fate == "exchange unanswered":
                    return
                if fate == "exchange repeated":
                    answer = self._answer(reports, offer)
                calls.send(answer)
            except (EOFError, OSError):
                return

    def _fate(self) -> str | None:
        """Return what is to become of this exchange: the storm asks for it by a file, for one exchange."""
        for fate in FATES:
            with suppress(FileNotFoundError):
                (self._farm.folder / fate).unlink()
                return fate
        return None

    def _answer(self, reports: Sequence[Report], offer: Offer) -> Directives:
        if self._over.is_set():
            return Directives(lease_lost=True)
        try:
            directives = self._steering.exchange(reports, offer)
        except BaseException as error:
            self._fail(error)
            return Directives(lease_lost=True)
        if directives.done:
            self._over.set()
        return directives

    def _renew(self, worker: str, beats: Connection) -> None:
        """Answer a worker's heartbeats, however long its exchange takes."""
        with beats, suppress(EOFError, OSError):
            while True:
                beats.recv()
                beats.send(self._steering.renew(worker))
