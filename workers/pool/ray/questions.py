"""How a worker on a cluster asks its controller: it is asked for its questions, with the answer to the one before.

So a worker needs to reach nobody, and what it is asked by ends with the launch or the service: its calls then wait for
ever, and Ray ends the process. Imports no ray.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from spaces.plugins.bundles import Outside
from workers.pool import Saving


@dataclass(frozen=True, kw_only=True)
class StudyInstructions:
    """The instructions that all workers of a study get at their start."""

    width: int | None
    """Most lanes of a pack; None: found while it trains."""
    saving: Saving | None
    outside: Outside
    """The study's plug-ins, whose files need not be on the worker's machine."""


class Question(NamedTuple):
    """What a worker wants to know."""

    kind: str
    """`attach`, `exchange` or `renew`."""
    arguments: tuple[Any, ...]


class WorkerEnded(NamedTuple):
    """The end of a worker, in place of a further question."""

    reason: str | None
    """Why it crashed, or could not start; None if it was told that the study is done."""
    has_left: bool = False
    """Whether its node has left the cluster, which is no crash."""


@final
class Line:
    """The questions of one kind of a worker, one at a time, and their answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: that in which questions are fetched."""
        self._loop = loop
        self._questions: asyncio.Queue[Question | WorkerEnded] = asyncio.Queue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._turn = threading.Lock()

    def ask(self, kind: str, *arguments: Any) -> Any:
        """Return the answer to a question; from any thread but the loop's."""
        with self._turn:
            self._put(Question(kind, arguments))
            return self._answers.get()

    def end(self, reason: str | None) -> None:
        """Say that the worker has ended; `reason`: of what, unless it was done."""
        self._put(WorkerEnded(reason))

    async def fetch(self, *answer: Any) -> Question | WorkerEnded:
        """Return the next question or the end, once there is one, with the answer to the one before."""
        for one in answer:
            self._answers.put(one)
        return await self._questions.get()

    def _put(self, question: Question | WorkerEnded) -> None:
        self._loop.call_soon_threadsafe(self._questions.put_nowait, question)
