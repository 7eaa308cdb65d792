"""How a worker of a service asks its controller: it is asked for its questions, with the answer to the one before.

So a worker needs to reach nobody, and what it is asked by ends with the service: its calls then wait for ever, and Ray
ends the process. Imports no ray.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import Any, NamedTuple, final

from spaces.plugins.bundles import Outside
from workers.pool import Saving


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a study's worker is told at its start."""

    slot: int
    width: int | None
    """Most lanes of a pack; None: found while it trains."""
    saving: Saving | None
    outside: Outside
    """The study's plug-ins, whose files need not be on the worker's machine."""


class Question(NamedTuple):
    """What a worker wants to know."""

    kind: str
    """`attach`, `exchange`, `renew`; or `end`, which has no answer."""
    arguments: tuple[Any, ...]


@final
class Line:
    """The questions of one kind of a worker, one at a time, and their answers."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._turn = threading.Lock()

    def ask(self, kind: str, *arguments: Any) -> Any:
        """Return the answer to a question; from any thread."""
        with self._turn:
            self._questions.put(Question(kind, arguments))
            return self._answers.get()

    def end(self, reason: str | None) -> None:
        """Say that the worker has ended; `reason`: of what, unless it was done."""
        self._questions.put(Question("end", (reason,)))

    def fetch(self, *answer: Any) -> Question:
        """Return the next question, once there is one, with the answer to the one before."""
        for one in answer:
            self._answers.put(one)
        return self._questions.get()
