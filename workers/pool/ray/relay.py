"""A Ray cluster that a service uses: its devices, with a worker of each study on each, which ask controllers here.

The controllers, and with them the database, stay in the service's process, and so does all that is decided of workers.
Ray is in a process of its own (`agent`). Imports no ray.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Self, final

from spaces.errors import ClusterError, StudyError
from spaces.plugins.bundles import Outside
from spaces.records import Progress
from workers.pool import Saving, Steering
from workers.pool.ray.cluster import Cluster
from workers.pool.ray.controller_actor import ControllerActor
from workers.pool.ray.questions import Question, Task
from workers.pool.slots import MOST_CRASHES

WATCH_SECONDS, SWEEP_SECONDS = 0.2, 1.0
GRACE_SECONDS = 90.0
"""The seconds in which workers must notice that a study has ended, before they are ended; longer
than a lease lasts."""
CLOSE_SECONDS = 10.0
_PROGRAM = "from workers.pool.ray.agent import main; main()"


@final
class SharedCluster:
    """The devices of a Ray cluster that a service has reserved. A context manager."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect, and reserve devices; raises StudyError for a cluster that cannot be used."""
        self.slots: tuple[int, ...] = ()
        """The numbers of the slots that exist now."""
        self.device = ""
        """The kind of device of the slots: `cuda` or `cpu`."""
        self._address = cluster.address
        self._desks: dict[int, StudyDesk] = {}
        """Worker -> the desk of its study."""
        self._numbers = itertools.count()
        self._failure: ClusterError | None = None
        self._is_ready = threading.Event()
        self._turn = threading.Lock()
        """Held while a message is sent."""
        self._pipe, theirs = Pipe()
        found = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A session of its own: a terminal's Ctrl-C is for the service, which stops workers in its own time.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env={**os.environ, **found}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self.send(cluster)
        threading.Thread(target=self._read, args=(self._pipe,), daemon=True).start()
        self._is_ready.wait()
        if self._failure:
            self._process.wait()
            raise StudyError(str(self._failure))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, which ends all workers."""
        self.send(("close",))
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise ClusterError if the cluster is gone."""
        if self._failure:
            raise self._failure

    def run(
        self,
        controller: Steering,
        *,
        width: int | None,
        saving: Saving | None,
        watch: Callable[[Progress], bool],
        outside: Outside,
    ) -> None:
        """Train a study until its controller is done, with a worker on each device; others may be trained beside it.

        All as `processes.run`. Raises ClusterError where the cluster is gone, with everything kept.
        """

        def task(slot: int) -> Task:
            return Task(slot=slot, width=width, saving=saving, outside=outside)

        desk = StudyDesk(self, ControllerActor(lambda: controller), task)
        # The plug-ins from outside that the study has are looked up by this thread's context.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(desk.serve,), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(WATCH_SECONDS)
            if desk.failure is None and watch(controller.progress()):
                controller.request_stop()
                desk.is_stopping = True
        if desk.failure:
            raise desk.failure

    def employ(self, desk: StudyDesk, task: Task) -> int:
        """Start a worker whose questions go to this study, and return its number."""
        worker = next(self._numbers)
        self._desks[worker] = desk
        self.send(("employ", worker, task))
        return worker

    def dismiss(self, worker: int) -> None:
        """End a worker; it gets no answer to what it may still ask."""
        self._desks.pop(worker, None)
        self.send(("dismiss", worker))

    def answer(self, worker: int, line: str, answer: Any) -> None:
        """Answer a worker's question."""
        self.send(("answer", worker, line, answer))

    def send(self, message: Any) -> None:
        """Send to the process that speaks to Ray; nothing happens if that process has ended."""
        with self._turn, suppress(OSError):
            self._pipe.send(message)

    # ---------------------------------------------------------------------------- in the thread that hears the process

    def _read(self, pipe: Connection) -> None:
        reason = "the process that speaks to it ended, as Ray ends one whose head has gone"
        with suppress(EOFError, OSError):
            while True:
                kind, *arguments = pipe.recv()
                if kind == "fail":
                    [reason] = arguments
                    break
                getattr(self, f"_on_{kind}")(*arguments)
        if self._is_ready.is_set():
            reason = (
                f"the Ray cluster at {self._address} does not go on: {reason}; what was recorded is kept, and "
                "`search serve` goes on when the cluster does"
            )
        self._failure = ClusterError(reason)
        self._is_ready.set()

    def _on_slots(self, device: str, slots: tuple[int, ...]) -> None:
        self.device, self.slots = device, slots
        self._is_ready.set()

    def _on_ask(self, worker: int, line: str, question: Question) -> None:
        desk = self._desks.get(worker)
        if desk and question.kind == "renew":  # never waits for the database
            self.answer(worker, line, desk.actor.renew(*question.arguments))
        elif desk:
            desk.inbox.put((worker, question))

    def _on_end(self, worker: int, reason: str | None, has_left: bool) -> None:
        if desk := self._desks.pop(worker, None):
            desk.inbox.put((worker, Question("leave" if has_left else "end", (reason,))))


@final
class StudyDesk:
    """The answers to the workers of one study, one after the other; all but those to `renew` are
    made in one thread.
    """

    def __init__(self, cluster: SharedCluster, actor: ControllerActor, task: Callable[[int], Task]) -> None:
        """`task` returns what a slot's worker is told at its start."""
        self.actor = actor
        self.inbox: queue.SimpleQueue[tuple[int, Question]] = queue.SimpleQueue()
        """Pairs of a worker and its question, or how it ended."""
        self.failure: BaseException | None = None
        """The error that ended it; None if the study has ended or was stopped."""
        self.is_stopping = False
        """A stop was requested: no more workers are needed."""
        self._cluster = cluster
        self._task = task
        self._slots: dict[int, int] = {}
        """Worker -> its slot."""
        self._begun: set[int] = set()
        """Workers that have asked something."""
        self._crashes = Counter[int]()
        """Slot -> crashes of its workers in a row, with nothing reported in between."""
        self._reason = ""
        """The reason of the last of these crashes."""
        self._ended: float | None = None
        """The time at which a worker was told that the study has ended; None before that."""

    def serve(self) -> None:
        """Start workers and answer them to the end of the study."""
        swept = time.monotonic()
        try:
            while not self._is_over():
                self._check()
                self._employ()
                with suppress(queue.Empty):
                    self._take(*self.inbox.get(timeout=WATCH_SECONDS))
                if time.monotonic() > swept + SWEEP_SECONDS:
                    self.actor.sweep()
                    swept = time.monotonic()
            self.actor.progress()  # raises what ended it
        except BaseException as error:
            self.failure = error
        for worker in self._slots:
            self._cluster.dismiss(worker)

    def _check(self) -> None:
        """Raise what ended the run, where no worker can be told; the trials of its workers are
        queued again.
        """
        try:
            self._cluster.check()
        except ClusterError:
            for slot in self._slots.values():
                self.actor.leave(slot)
            raise
        if not self._begun:
            self.actor.progress()

    def _is_over(self) -> bool:
        """Return whether no worker trains and none will be started.

        A worker that has asked nothing yet can be cancelled.
        """
        if self.is_stopping or self._ended is not None:
            late = self._ended is not None and time.monotonic() > self._ended + GRACE_SECONDS
            return late or not self._begun
        if self._slots or not self._cluster.slots or any(map(self._is_usable, self._cluster.slots)):
            return False
        self.actor.give_up(self._reason)
        return True

    def _is_usable(self, slot: int) -> bool:
        return self._crashes[slot] < MOST_CRASHES

    def _employ(self) -> None:
        """Start a worker in each free slot."""
        if self.is_stopping or self._ended is not None:
            return
        for slot in {*self._cluster.slots} - {*self._slots.values()}:
            if self._is_usable(slot):
                self._slots[self._cluster.employ(self, self._task(slot))] = slot

    def _take(self, worker: int, question: Question) -> None:
        """Answer a question, or note an end."""
        kind, arguments = question
        slot = self._slots[worker]
        if kind == "attach":
            self._begun.add(worker)
            self.actor.attach(slot, *arguments)
            self._cluster.answer(worker, "exchange", None)
        elif kind == "exchange":
            reports, offer = arguments
            answer = self.actor.exchange(reports, offer)
            if reports:
                del self._crashes[slot]
            if answer.done and self._ended is None:
                self._ended = time.monotonic()
            self._cluster.answer(worker, "exchange", answer)
        else:  # the worker was told to end, is gone with its machine, or has crashed
            [reason] = arguments
            del self._slots[worker]
            self._begun.discard(worker)
            if kind == "leave":
                self.actor.leave(slot)
            elif reason is not None:
                self.actor.detach(slot)
                self._crashes[slot] += 1
                self._reason = reason
