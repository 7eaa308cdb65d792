"""The leases of a study's workers on their trials.

A worker renews its lease every ten seconds; a lease expires a minute after its last renewal. A
renewal is noted in memory at once and written at the next sweep, together with all others. Then the
database's clock alone decides which leases have expired: clocks of machines differ, and a
controller that was paused cannot trust its own. So a renewal never waits for the database, and no
lease expires while the database is away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, final

from search.steering.study_store import StudyStore
from spaces.records import Offer, WorkerStatus

LEASE_SECONDS = 60.0
SWEEP_SECONDS = 10.0


@dataclass(slots=True)
class _Worker:
    """A worker as it was last seen."""

    offer: Offer
    last_seen: float
    state: Literal["running", "done"] = "running"
    steps: int = 0
    room: int = 0

    def status(self, now: float) -> WorkerStatus:
        offer = self.offer
        return WorkerStatus(
            worker=offer.worker,
            host=offer.host,
            device=offer.device,
            log=offer.log,
            state=self.state,
            steps=self.steps,
            room=self.room,
            seconds=now - self.last_seen,
        )


@final
class Leases:
    """Leases of one controller's workers; any thread may use `renew`, `steps` and `room`."""

    def __init__(self, study: StudyStore, clock: Callable[[], float]) -> None:
        self._study = study
        self._clock = clock
        self._workers: dict[str, _Worker] = {}
        self._lost: set[str] = set()
        self._dismissed: set[str] = set()
        """Dismissed workers whose dismissal is written."""
        self._swept = clock()

    @property
    def steps(self) -> int:
        """Optimizer steps of all lanes so far."""
        return sum(worker.steps for worker in [*self._workers.values()])

    @property
    def room(self) -> int:
        """Model-steps that the workers would have made if no lane had been free."""
        return sum(worker.room for worker in [*self._workers.values()])

    @property
    def workers(self) -> Collection[str]:
        """All workers that this controller has seen."""
        return self._workers.keys()

    def admit(self, offer: Offer) -> bool:
        """Note a worker's offer; False if its lease has expired."""
        if offer.worker in self._lost:
            return False
        worker = self._workers.get(offer.worker)
        if worker is None:
            worker = self._workers[offer.worker] = _Worker(offer, self._clock())
            self.write_renewals()  # a lease must be in the database before its worker is given a trial
        worker.offer, worker.last_seen = offer, self._clock()
        worker.steps, worker.room = worker.steps + offer.steps, worker.room + offer.room
        return True

    def renew(self, worker: str) -> bool:
        """Note that a worker is alive; False if its lease has expired."""
        known = self._workers.get(worker)
        if known:
            known.last_seen = self._clock()
        return worker not in self._lost

    def dismiss(self, worker: str) -> None:
        """Record that the worker was told that it is done."""
        self._workers[worker].state = "done"

    def drop(self, worker: str) -> None:
        """End a worker's lease; the worker is told so at its next call."""
        self._lost.add(worker)

    def sweep(self) -> list[str]:
        """Write the renewals every ten seconds; return the workers whose leases have expired."""
        return self.write_renewals() if self._clock() >= self._swept + SWEEP_SECONDS else []

    def write_renewals(self) -> list[str]:
        """Write when each worker was last seen; return those whose leases have expired since.

        A controller that was paused cannot tell which workers were silent: it renews every lease.
        """
        now = self._clock()
        if now > self._swept + LEASE_SECONDS / 2:
            for worker in self._workers.values():
                worker.last_seen = now
        gone = self._lost | self._dismissed
        alive = {name: worker for name, worker in self._workers.items() if name not in gone}
        seen = [worker.status(now) for worker in alive.values()]
        expired = self._study.renew_leases(seen, LEASE_SECONDS)
        self._swept = self._clock()
        done = {name for name, worker in alive.items() if worker.state == "done"}
        self._dismissed |= done
        return [name for name in alive if name in expired and name not in done]
