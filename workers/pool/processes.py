"""Workers in processes of this machine, one for each GPU or share of one.

torch starts a GPU's kernels from Python, so that workers in threads of one process would wait for
Python's lock; and what ends a worker on one GPU (a fault of its driver, memory of the machine)
leaves others alone. The controller stays in the first process. A worker speaks to it through two
pipes, one for its heartbeat alone; if its process dies another one follows.
"""

from __future__ import annotations

import contextvars
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import Any, final

from spaces.plugins.active import install
from spaces.plugins.bundles import Outside
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from workers.engine.machine.locations import Location
from workers.engine.machine.process import prepare
from workers.pool import Saving, Steering
from workers.pool.controller_proxy import ControllerProxy
from workers.pool.logs import last_line, log_exchange
from workers.pool.slots import MOST_CRASHES, name_worker
from workers.pool.worker_settings import WorkerSettings, make_worker

WATCH_SECONDS, SWEEP_CALL_SECONDS = 0.2, 1.0
GRACE_SECONDS = 90.0
"""Seconds in which a worker must notice the study's end, or is killed: longer than a lease."""
_PROGRAM = "from workers.pool.processes import main; main()"
_LOG = logging.getLogger("graft.pool")


def run(
    controller: Steering,
    *,
    locations: Sequence[Location],
    width: int | None = None,
    workers: int | None = None,
    saving: Saving | None = None,
    watch: Callable[[Progress], bool] | None = None,
    outside: Outside = Outside(),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Train until the controller is done.

    `workers` are shared out evenly among the locations; None: one for each. `outside`: plug-ins
    that workers are sent. `environment`: more variables of their processes. All else as
    `inline.run`. Raises the controller's GraftError, and StudyError if every worker has died again
    and again.
    """
    count = workers or len(locations)
    sharing = -(-count // len(locations))
    processes = _WorkerProcesses(ControllerProxy(controller))
    threads: list[threading.Thread] = []
    for slot in range(count):
        location = locations[slot % len(locations)]
        settings = WorkerSettings(device=location.device, width=width, saving=saving, sharing=sharing)
        instructions = _Instructions(slot, settings, outside)
        variables = {**(environment or {}), **location.environment}
        # With the context of this thread, in which the controller looks up the study's plug-ins from outside.
        fill = partial(contextvars.copy_context().run, processes.fill, instructions, variables)
        threads.append(threading.Thread(target=fill, daemon=True))
    for thread in threads:
        thread.start()
    swept = time.monotonic()
    try:
        while any(thread.is_alive() for thread in threads):
            next(thread for thread in threads if thread.is_alive() or thread is threads[-1]).join(WATCH_SECONDS)
            if watch and watch(processes.progress()):
                controller.request_stop()
            if time.monotonic() > swept + SWEEP_CALL_SECONDS:
                processes.sweep()
                swept = time.monotonic()
        processes.check()
    finally:
        processes.close()


@dataclass(frozen=True)
class _Instructions:
    """The instructions that a worker's process gets at its start."""

    slot: int
    settings: WorkerSettings
    outside: Outside


@final
@dataclass
class _WorkerProcesses:
    """The controller's side of the workers' processes: it makes one exchange at a time."""

    proxy: ControllerProxy
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set[subprocess.Popen[bytes]])
    _failure: BaseException | None = None
    """An error that neither a worker nor the proxy raises."""
    _ended: float | None = None
    """The time at which a worker learned of the study's end; None before."""
    _abandoned: str | None = None
    """The reason of the last death in an abandoned slot; None without such a slot."""

    def fill(self, instructions: _Instructions, variables: Mapping[str, str]) -> None:
        """Keep a worker in a slot to the end of the study: another follows one that dies."""
        crashes = 0
        while self._ended is None and crashes < MOST_CRASHES:
            ending = _Ending()
            try:
                self._employ(instructions, variables, ending)
            except Exception as error:  # such as no memory, or no more open files, for a process
                ending.reason = last_line(error)
            if ending.done:
                return
            with self._turn:
                self.proxy.note_crash(instructions.slot)
            crashes = 1 if ending.reported else crashes + 1
            _LOG.warning("the worker of %s died: %s", instructions.settings.device, ending.reason)
            self._abandoned = ending.reason

    def _employ(self, instructions: _Instructions, variables: Mapping[str, str], ending: _Ending) -> None:
        """Run one process to its end; raises OSError if it cannot be started."""
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables}
        with ExitStack() as pipes:
            exchanges, their_exchanges = map(pipes.enter_context, Pipe())
            renewals, their_renewals = map(pipes.enter_context, Pipe())
            numbers = [their_exchanges.fileno(), their_renewals.fileno()]
            # A session of its own: a terminal's Ctrl-C is for the launcher, which stops workers itself.
            process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *map(str, numbers)],
                pass_fds=numbers,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            self._processes.add(process)
            their_exchanges.close()  # so that the end of the process is the end of the pipe
            their_renewals.close()
            renewing = threading.Thread(target=self._answer, args=(renewals, instructions.slot, ending), daemon=True)
            renewing.start()
            with suppress(OSError):  # it died before it could read
                exchanges.send(instructions)
            self._answer(exchanges, instructions.slot, ending)
            status = process.wait()
            self._processes.discard(process)
            renewing.join()
        ending.reason = ending.reason or (f"signal {-status}" if status < 0 else f"exit status {status}")

    def _answer(self, pipe: Connection, slot: int, ending: _Ending) -> None:
        """Answer a worker's questions until its process has ended."""
        with pipe, suppress(EOFError, OSError):
            while True:
                question, arguments = pipe.recv()
                pipe.send(getattr(self, f"_on_{question}")(slot, ending, *arguments))

    def _on_attach(self, slot: int, ending: _Ending, name: str) -> None:
        with self._turn:
            self.proxy.attach(slot, name)

    def _on_exchange(self, slot: int, ending: _Ending, reports: Sequence[Report], offer: Offer) -> Directives:
        with self._turn:
            try:
                answer = self.proxy.exchange(reports, offer) if self._failure is None else Directives(done=True)
            except BaseException as error:
                self._failure = error
                answer = Directives(done=True)
        ending.reported |= bool(reports)
        if answer.done:
            ending.done, self._ended = True, self._ended or time.monotonic()
        return answer

    def _on_renew(self, slot: int, ending: _Ending, name: str) -> bool:
        return self.proxy.renew(name)

    def _on_fail(self, slot: int, ending: _Ending, reason: str) -> None:
        ending.reason = reason

    def progress(self) -> Progress:
        """Return the study's progress; raises the error that ended the run."""
        if self._failure is not None:
            raise self._failure
        return self.proxy.progress()

    def sweep(self) -> None:
        """Let the controller check leases, and kill workers that miss the study's end."""
        if self._turn.acquire(blocking=False):
            try:
                self.proxy.sweep()
            finally:
                self._turn.release()
        if self._ended is not None and time.monotonic() > self._ended + GRACE_SECONDS:
            self.close()

    def check(self) -> None:
        """Raise the error that ended the run, if any, or that no worker saw its end."""
        if self._ended is None and self._abandoned is not None:
            self.proxy.give_up(self._abandoned)
        self.progress()

    def close(self) -> None:
        """Kill the processes that are left."""
        for process in [*self._processes]:
            process.kill()


@dataclass
class _Ending:
    """The end of a worker's process."""

    done: bool = False
    """True if it learned of the study's end."""
    reported: bool = False
    reason: str = ""


def main() -> None:
    """Run the worker whose pipes the command line names."""
    exchanges, renewals = (_Line(Connection(int(number))) for number in sys.argv[1:3])
    launcher_gone = EOFError, BrokenPipeError, ConnectionResetError
    try:
        _work(exchanges.pipe.recv(), exchanges, renewals)
    except launcher_gone:  # nothing waits for what this worker trains
        sys.exit(1)
    except Exception as error:
        with suppress(*launcher_gone):
            exchanges.ask("fail", last_line(error))
        sys.exit(1)


def _work(instructions: _Instructions, exchanges: _Line, renewals: _Line) -> None:
    """Run workers in turn, as leases run out, to the end of the study."""
    install(instructions.outside)
    prepare()
    exchange = log_exchange(partial(exchanges.ask, "exchange"))
    done = False
    while not done:
        name = name_worker("process", instructions.slot)
        exchanges.ask("attach", name)
        renew = partial(renewals.ask, "renew", name)
        done = make_worker(name, instructions.settings, exchange, renew).run()


@final
@dataclass
class _Line:
    """A line to the launcher through a pipe, for one question at a time, from any thread."""

    pipe: Connection
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the answer; raises EOFError or OSError if the launcher is gone."""
        with self._turn:
            self.pipe.send((question, arguments))
            return self.pipe.recv()
