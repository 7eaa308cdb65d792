"""Workers on a Ray cluster, and their controllers here: one for a launch, several for a service.

The controllers, and with them the database and all decisions, stay in the process of the launch or
the service. Ray is in a process of its own (`agent`). Imports no ray.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any, Self, final

from spaces.errors import ClusterError, StudyError
from spaces.plugins.bundles import Outside
from spaces.progress import Progress
from workers.pool import Saving, Steering
from workers.pool.controller_proxy import ControllerProxy
from workers.pool.logs import last_line
from workers.pool.ray.access import stay_on_loopback
from workers.pool.ray.cluster import Cluster
from workers.pool.ray.questions import Question, StudyInstructions, WorkerEnded
from workers.pool.slots import MOST_CRASHES

WATCH_SECONDS, SWEEP_CALL_SECONDS = 0.2, 1.0
GRACE_SECONDS = 90.0
"""Seconds in which workers must notice a study's end, before they are ended: more than a lease."""
CLOSE_SECONDS = 10.0
_PROGRAM = "from workers.pool.ray.agent import main; main()"


@final
class RayPool:
    """A Ray cluster's slots, each with a worker of each running study. A context manager."""

    def __init__(self, cluster: Cluster) -> None:
        """Connect; raises StudyError if the cluster cannot be used."""
        if cluster.address is None:
            stay_on_loopback()
        self.slots: tuple[int, ...] = ()
        """The numbers of the slots that exist now."""
        self.device = ""
        """The kind of device of the slots: `cuda` or `cpu`."""
        self.sharing = 1
        """Workers of a study that share a GPU, or a core."""
        self._cluster = cluster
        self._servers: dict[int, StudyServer] = {}
        """Worker -> the server of its study."""
        self._numbers = itertools.count()
        self._failure: ClusterError | None = None
        self._is_ready = threading.Event()
        self._turn = threading.Lock()
        """Held while a message is sent."""
        self._folder = tempfile.TemporaryDirectory(prefix="graft-tune-", ignore_cleanup_errors=True)
        self._pipe, theirs = Pipe()
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # A session of its own: a terminal's Ctrl-C is for the service, which stops workers itself.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env={**os.environ, **environment}, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self.send((cluster, self._folder.name))
        threading.Thread(target=self._read, args=(self._pipe,), daemon=True).start()
        try:
            self._is_ready.wait()
        except BaseException:
            self.close()
            raise
        if self._failure:
            self.close()
            raise StudyError(str(self._failure))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, which ends all workers."""
        self.send(("exit",))
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

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
        """Train a study until its controller is done, with a worker in each slot, beside others.

        `width` None: found in training; `saving` None: without checkpoints. `watch` is called with
        the progress a few times a second, and returns True to ask for a stop. `outside`: plug-ins
        that workers are sent. Raises the controller's GraftError, StudyError if every worker has
        crashed again and again, and ClusterError if the cluster is gone, with everything kept.
        """
        study = next(self._numbers)
        instructions = StudyInstructions(width=width, saving=saving, outside=outside, sharing=self.sharing)
        self.send(("open", study, instructions))
        server = StudyServer(self, ControllerProxy(controller), study)
        # The plug-ins from outside that the study has are looked up by this thread's context.
        thread = threading.Thread(target=contextvars.copy_context().run, args=(server.serve,), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(WATCH_SECONDS)
                progress = controller.progress()
                if server.failure is None and (watch(progress) or progress.stopping):
                    controller.request_stop()
                    server.is_stopping = True
        finally:
            server.is_stopping = True  # if `watch` raised, others' studies go on
            self.send(("close", study))
        if server.failure:
            raise server.failure

    def employ(self, server: StudyServer, slot: int) -> int:
        """Start a study's worker in a slot, and return its number."""
        worker = next(self._numbers)
        self._servers[worker] = server
        self.send(("employ", worker, server.study, slot))
        return worker

    def dismiss(self, worker: int) -> None:
        """End a worker, which gets no more answers."""
        self._servers.pop(worker, None)
        self.send(("dismiss", worker))

    def answer(self, worker: int, line: str, answer: Any) -> None:
        """Answer a worker's question."""
        self.send(("answer", worker, line, answer))

    def send(self, message: Any) -> None:
        """Send to the process that speaks to Ray, unless it has ended."""
        with self._turn, suppress(OSError):
            self._pipe.send(message)

    def _read(self, pipe: Connection) -> None:
        """Handle the messages of the process that speaks to Ray, in a thread, until it ends."""
        reason = "its process ended, as Ray ends one whose head has gone"
        try:
            while True:
                kind, *arguments = pipe.recv()
                if kind == "fail":
                    [reason] = arguments
                    break
                getattr(self, f"_on_{kind}")(*arguments)
        except (EOFError, OSError):
            pass
        except Exception as error:
            reason = last_line(error)
        if self._is_ready.is_set():
            where = f" at {self._cluster.address}" if self._cluster.address else ""
            then = "the study can be resumed"
            if self._cluster.shared:
                then = "`search serve` goes on when the cluster does"
            reason = f"the Ray cluster{where} does not go on: {reason}; what was recorded is kept, and {then}"
        self._failure = ClusterError(reason)
        self._is_ready.set()

    def _on_slots(self, device: str, sharing: int, slots: tuple[int, ...]) -> None:
        self.device, self.sharing, self.slots = device, sharing, slots
        self._is_ready.set()

    def _on_ask(self, worker: int, line: str, question: Question) -> None:
        server = self._servers.get(worker)
        if server and question.kind == "renew":  # never waits for the database
            self.answer(worker, line, server.proxy.renew(*question.arguments))
        elif server:
            server.inbox.put((worker, question))

    def _on_end(self, worker: int, reason: str | None, has_left: bool) -> None:
        if server := self._servers.pop(worker, None):
            server.inbox.put((worker, WorkerEnded(reason, has_left)))


@final
class StudyServer:
    """Answers the workers of one study, one at a time, in a thread, except for `renew`."""

    def __init__(self, pool: RayPool, proxy: ControllerProxy, study: int) -> None:
        self.proxy = proxy
        self.study = study
        """The study's number in the pool."""
        self.inbox: queue.SimpleQueue[tuple[int, Question | WorkerEnded]] = queue.SimpleQueue()
        """Pairs of a worker and its question, or its end."""
        self.failure: BaseException | None = None
        """The error that ended it; None if the study has ended or was stopped."""
        self.is_stopping = False
        """True after a request to stop: no more workers are needed."""
        self._pool = pool
        self._slots: dict[int, int] = {}
        """Worker -> its slot."""
        self._begun: set[int] = set()
        """Workers that have asked something."""
        self._crashes = Counter[int]()
        """Slot -> consecutive crashes of its workers without a report."""
        self._reason = ""
        """The reason of the last of these crashes."""
        self._ended: float | None = None
        """The time at which a worker learned of the study's end; None before."""

    def serve(self) -> None:
        """Start workers and answer them to the end of the study."""
        swept = time.monotonic()
        try:
            while not self._is_over():
                self._requeue_if_cluster_gone()
                if not self._begun:  # no worker would learn of the error that ended the run
                    self.proxy.progress()
                for slot in {*self._pool.slots} - {*self._slots.values()}:
                    if not self.is_stopping and self._ended is None and self._is_usable(slot):
                        self._slots[self._pool.employ(self, slot)] = slot
                with suppress(queue.Empty):
                    self._take(*self.inbox.get(timeout=WATCH_SECONDS))
                if time.monotonic() > swept + SWEEP_CALL_SECONDS:
                    self.proxy.sweep()
                    swept = time.monotonic()
            self.proxy.progress()  # raises what ended it
        except BaseException as error:
            self.failure = error
        for worker in self._slots:
            self._pool.dismiss(worker)

    def _requeue_if_cluster_gone(self) -> None:
        """Queue all trials again if the cluster is gone; ClusterError unless the study ended."""
        try:
            self._pool.check()
        except ClusterError:
            for slot in self._slots.values():
                self.proxy.note_departure(slot)
            if self._ended is None:
                raise
            self._slots.clear()  # they had nothing left to train
            self._begun.clear()

    def _is_over(self) -> bool:
        """Return True if no worker trains; one that has asked nothing yet can be cancelled."""
        if self.is_stopping or self._ended is not None:
            late = self._ended is not None and time.monotonic() > self._ended + GRACE_SECONDS
            return late or not self._begun
        if self._slots or not self._pool.slots or any(map(self._is_usable, self._pool.slots)):
            return False
        self.proxy.give_up(self._reason)
        return True

    def _is_usable(self, slot: int) -> bool:
        return self._crashes[slot] < MOST_CRASHES

    def _take(self, worker: int, message: Question | WorkerEnded) -> None:
        """Answer a question, or note an end."""
        slot = self._slots.get(worker)
        if slot is None:  # it asked before its cluster was gone
            return
        if isinstance(message, WorkerEnded):
            del self._slots[worker]
            self._begun.discard(worker)
            if message.has_left:
                self.proxy.note_departure(slot)
            elif message.reason is not None:
                self.proxy.note_crash(slot)
                self._crashes[slot] += 1
                self._reason = message.reason
        elif message.kind == "attach":
            self._begun.add(worker)
            self.proxy.attach(slot, *message.arguments)
            self._pool.answer(worker, "exchange", None)
        else:
            reports, offer = message.arguments
            answer = self.proxy.exchange(reports, offer)
            if reports:
                del self._crashes[slot]
            if answer.done and self._ended is None:
                self._ended = time.monotonic()
            self._pool.answer(worker, "exchange", answer)
