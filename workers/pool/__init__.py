"""Pools place workers on devices: `inline` in this process, `processes`, or `ray` on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spaces.progress import Progress
from spaces.records import Directives, Offer, Report


class Saving(NamedTuple):
    """The place and pace of a study's checkpoints."""

    url: str
    """A folder that all workers share, or a URL that fsspec knows."""
    study: str
    seconds: float
    """Most seconds between two checkpoints of a worker."""


class Steering(Protocol):
    """A pool's view of a controller; `search.steering.controller.Controller` has it.

    One thread at a time may call it; but any thread may call `renew`, `progress` and `request_stop`
    during another call, and they answer at once.
    """

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record a worker's reports, decide, and return the trials of its free lanes."""
        ...

    def handle_crash(self, worker: str) -> None:
        """Rescue the trials of a worker whose process crashed; one of them may be the cause."""

    def handle_departure(self, worker: str) -> None:
        """Release the trials of a worker whose machine is gone; none of them is the cause."""

    def renew(self, worker: str) -> bool:
        """Renew a worker's lease; False if it has expired."""
        ...

    def sweep(self) -> None:
        """Requeue trials whose workers' leases have expired; called about every second."""

    def request_stop(self) -> None:
        """Dismiss every worker that exchanges from now on, and queue its trials again."""

    def progress(self) -> Progress:
        """Return the progress of the study."""
        ...

    def close(self) -> None:
        """Write how the run ended, and give the study back."""
