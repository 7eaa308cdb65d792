"""Exchanges with the controller in a thread; the worker trains on if no answer comes soon.

A controller answers when the reports are in the database. Meanwhile further reports go into a
journal for the next exchange, and training stops when it is full.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Sequence
from typing import final

from spaces.records import Directives, Offer, Report

Exchange = Callable[[Sequence[Report], Offer], Directives]
"""Reports in, directives out; returns only when the reports are recorded."""

MAX_JOURNAL_NUMBERS = 100_000
"""Most numbers that are kept for the next exchange: some ten megabytes."""


@final
class Exchanger:
    """One exchange at a time, made by a thread of its own. A context manager."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sent: queue.SimpleQueue[tuple[Sequence[Report], Offer] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Directives | BaseException] = queue.SimpleQueue()

    def __enter__(self) -> Exchanger:
        threading.Thread(target=contextvars.copy_context().run, args=(self._carry,), daemon=True).start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._sent.put(None)

    def send(self, reports: Sequence[Report], offer: Offer) -> None:
        """Start an exchange; its answer must be taken before the next one."""
        self._sent.put((reports, offer))

    def answer(self, seconds: float) -> Directives | None:
        """Return the answer, or None if there is none in so many seconds; raises its error."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _carry(self) -> None:
        while (sent := self._sent.get()) is not None:
            try:
                self._answers.put(self._exchange(*sent))
            except BaseException as error:
                self._answers.put(error)


def numbers_in(reports: Sequence[Report]) -> int:
    """Count the entries of a journal that the reports take."""
    return sum(1 + len(report.metrics) for report in reports)
