"""A controller for workers in other processes; it knows which worker holds each slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from spaces.errors import GraftError, StudyError
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from workers.pool import Steering
from workers.pool.slots import MOST_CRASHES


@final
class ControllerProxy:
    """Passes the calls of a slot's worker on to one controller, and ends the run on an error.

    As in `Steering`, any thread may call `renew` and `progress`, and one at a time all else.
    """

    def __init__(self, controller: Steering) -> None:
        self._controller = controller
        self._holders: dict[int, str] = {}
        self._error: GraftError | None = None

    def attach(self, slot: int, worker: str) -> None:
        """Give a slot to its new worker; if its last one still has it, that one crashed."""
        self.note_crash(slot)
        self._holders = {**self._holders, slot: worker}

    def note_crash(self, slot: int) -> None:
        """Free the slot of a crashed worker; its trials count a crash and are queued again."""
        self._clear(slot, self._controller.handle_crash)

    def note_departure(self, slot: int) -> None:
        """Free the slot of a worker whose node is gone; its trials are queued again."""
        self._clear(slot, self._controller.handle_departure)

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Exchange with the controller; after a GraftError dismiss every worker."""
        if self._error is None and offer.worker in self._holders.values():
            try:
                return self._controller.exchange(reports, offer)
            except GraftError as error:
                self._error = error
        return Directives(done=True)

    def renew(self, worker: str) -> bool:
        """Renew a worker's lease; False also if its slot has another holder."""
        return worker in self._holders.values() and self._controller.renew(worker)

    def sweep(self) -> None:
        """Let the controller check leases, unless an error has ended the run."""
        if self._error is None:
            self._guard(self._controller.sweep)

    def give_up(self, reason: str) -> None:
        """End the run with an error, as every slot was abandoned."""
        self._error = self._error or StudyError(
            f"every worker crashed {MOST_CRASHES} times, the last one with: {reason}; it can be resumed"
        )

    def progress(self) -> Progress:
        """Return the study's progress; raises the error that ended the run."""
        if self._error is not None:
            raise self._error
        return self._controller.progress()

    def _clear(self, slot: int, tell: Callable[[str], None]) -> None:
        if slot in self._holders:
            worker = self._holders[slot]
            self._holders = {other: name for other, name in self._holders.items() if other != slot}
            self._guard(lambda: tell(worker))

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except GraftError as error:
            self._error = error
