"""The questions of a worker on a cluster: they are fetched, with the answer to the one before.

So a worker needs to reach nothing. Its calls wait for ever once the launch or the service has
ended, and Ray ends the process. Imports no ray.
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
    sharing: int
    """Workers of the study that share a GPU, or a core."""


class Question(NamedTuple):
    """A question of a worker."""

    kind: str
    """`attach`, `exchange` or `renew`."""
    arguments: tuple[Any, ...]


class WorkerEnded(NamedTuple):
    """The end of a worker, in place of a further question."""

    reason: str | None
    """The reason why it crashed, or could not start; None if the study is done."""
    has_left: bool = False
    """True if its node has left the cluster, which is no crash."""


@final
class Line:
    """One kind of a worker's questions, one at a time, and their answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: the one in which questions are fetched."""
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
        """Say that the worker has ended, with the reason unless it was done."""
        self._put(WorkerEnded(reason))

    async def fetch(self, *answer: Any) -> Question | WorkerEnded:
        """Return the next question or the end, with the answer to the one before."""
        for reply in answer:
            self._answers.put(reply)
        return await self._questions.get()

    def _put(self, question: Question | WorkerEnded) -> None:
        self._loop.call_soon_threadsafe(self._questions.put_nowait, question)
