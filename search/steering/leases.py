"""Who of a study's workers lives: each says so every ten seconds, and has its trials for a minute from when it did.

A renewal is noted at once and written at the next sweep, together with all others; then the database's clock alone
says whose time is over. So a renewal never waits for the database, and while that is away nobody loses anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from search.steering.memory import Memory
from spaces.records import Offer, WorkerStatus

LEASE_SECONDS = 60.0
SWEEP_SECONDS = 10.0


@dataclass(slots=True)
class _Seen:
    """A worker, as of its last word."""

    offer: Offer
    heard: float
    state: Literal["running", "done"] = "running"
    steps: int = 0
    room: int = 0


@final
class Leases:
    """Leases of the workers of one controller; `renew`, `steps` and `room` may be asked by any thread, at any time."""

    def __init__(self, memory: Memory, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._lost: set[str] = set()
        self._home: set[str] = set()
        """Who was sent home, once that is written."""
        self._swept = clock()

    @property
    def steps(self) -> int:
        """Training steps of all lanes so far."""
        return sum(one.steps for one in [*self._seen.values()])

    @property
    def room(self) -> int:
        """What they would have been with no lane free."""
        return sum(one.room for one in [*self._seen.values()])

    def admit(self, offer: Offer) -> bool:
        """Note what a worker says of itself; False if its lease ran out."""
        if offer.worker in self._lost:
            return False
        seen = self._seen.get(offer.worker)
        if seen is None:
            seen = self._seen[offer.worker] = _Seen(offer, self._clock())
            self.write()
        seen.offer, seen.heard = offer, self._clock()
        seen.steps, seen.room = seen.steps + offer.steps, seen.room + offer.room
        return True

    def renew(self, worker: str) -> bool:
        """Note that a worker lives; False if its lease ran out."""
        seen = self._seen.get(worker)
        if seen:
            seen.heard = self._clock()
        return worker not in self._lost

    def dismiss(self, worker: str) -> None:
        """The worker was sent home."""
        self._seen[worker].state = "done"

    def drop(self, worker: str) -> None:
        """The worker holds nothing any more, and learns of it when it speaks again."""
        self._lost.add(worker)

    def sweep(self) -> list[str]:
        """Every ten seconds: write the renewals; the workers whose leases ran out since."""
        return self.write() if self._clock() >= self._swept + SWEEP_SECONDS else []

    def write(self) -> list[str]:
        """Write who was heard of; the workers whose leases ran out since the last time.

        A controller that was itself away for long cannot tell who was silent: it gives everybody a new lease.
        """
        now = self._clock()
        if now > self._swept + LEASE_SECONDS / 2:
            for seen in self._seen.values():
                seen.heard = now
        living = {name: seen for name, seen in self._seen.items() if name not in self._lost | self._home}
        over = self._memory.leases([_heard(seen, now) for seen in living.values()], LEASE_SECONDS)
        self._swept = self._clock()
        self._home.update(name for name, seen in living.items() if seen.state == "done")
        return [name for name, seen in living.items() if name in over and seen.state == "running"]


def _heard(seen: _Seen, now: float) -> WorkerStatus:
    offer = seen.offer
    return WorkerStatus(
        worker=offer.worker,
        host=offer.host,
        device=offer.device,
        log=offer.log,
        state=seen.state,
        steps=seen.steps,
        room=seen.room,
        seconds=now - seen.heard,
    )
