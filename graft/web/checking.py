"""Submissions are checked in processes of their own, as a sender decides how much work a space is.

A process is forked for each from a server of forks that has imported all that a check needs. It may
use so much memory and so many seconds, and is killed after those; the process that answers does
none of the work, and gets JSON from it.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Generator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any, final

from graft.web.security.refusals import RefusalError

_AT_ONCE = 2
"""Checks at one time; others wait."""
_MEMORY_BYTES = 1 << 30
"""Memory that a check may use beyond what the imports do."""
_PRIORITY = 10
"""Niceness: below the priority of training, above that of pages. A check that waits for the
processor for long would be taken for one that has no end."""
_CONTEXT = multiprocessing.get_context("forkserver")


def warm_up() -> None:
    """Start the server of forks once, before the process lowers its priority: forks inherit it."""
    _CONTEXT.set_forkserver_preload(["graft.web.forks"])
    forkserver.ensure_running()


@final
class Checker:
    """Checks submissions, a few at a time, one of each person."""

    def __init__(self, seconds: float) -> None:
        """Give each check so many seconds, and half as many to wait for its turn."""
        self._seconds = seconds
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._people: set[str] = set()
        self._lock = threading.Lock()

    def ask(self, question: Callable[..., Any], values: tuple[Any, ...], person: str) -> Any:
        """Return the answer to a question of `submissions`, as JSON values.

        Refused as `submissions.reading` does, and with 400 if it takes too long or too much memory.
        """
        with self._turn(person):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            args = (theirs, question, values, self._seconds)
            process = _CONTEXT.Process(target=_answer, args=args, daemon=True)
            process.start()
            theirs.close()
            try:
                answer = ours.recv_bytes() if ours.poll(self._seconds) else b""
            except EOFError:
                answer = b"null"
            finally:
                process.kill()
                process.join()
                ours.close()
        if not answer:
            raise RefusalError(400, f"the space took more than {self._seconds:g} seconds to check; {_ELSEWHERE}")
        reply: dict[str, Any] | None = json.loads(answer)
        if reply is None:
            raise RefusalError(400, f"the space took more memory or time to check than it may; {_ELSEWHERE}")
        if "reason" in reply:
            raise RefusalError(reply["status"], reply["reason"])
        return reply["answer"]

    @contextlib.contextmanager
    def _turn(self, person: str) -> Generator[None]:
        """Wait for a turn, of which a person has one at a time; refused with 429 or 503."""
        with self._lock:
            if person in self._people:
                raise RefusalError(429, "a submission of yours is being checked; wait for its answer")
            self._people.add(person)
        try:
            if not self._turns.acquire(timeout=self._seconds / 2):
                raise RefusalError(503, "other submissions are being checked; try again", {"Retry-After": "10"})
            try:
                yield
            finally:
                self._turns.release()
        finally:
            with self._lock:
                self._people.discard(person)


_ELSEWHERE = "submit it on the server's machine, with `search submit`"


def _answer(connection: Connection, question: Callable[..., Any], values: tuple[Any, ...], seconds: float) -> None:
    """Answer one question, in a process of its own; the answer that is sent is JSON."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 2 * seconds)  # should the process that waits be gone
    with contextlib.suppress(OSError):
        os.nice(max(0, _PRIORITY - os.nice(0)))
    with open("/proc/self/status") as file:
        used = next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from graft.web.submissions import describe, hide_folders

    try:
        answer = json.dumps({"answer": question(*values)})
    except BaseException as error:
        status, reason = describe(error)
        answer = json.dumps({"status": status, "reason": hide_folders(" ".join(reason.split()))})
    connection.send_bytes(answer.encode())
    connection.close()
    os._exit(0)  # threads that a plug-in has begun are not waited for
