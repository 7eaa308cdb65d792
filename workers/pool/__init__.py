"""Pools place workers on devices: `inline` in this process, `processes` one each, `ray` on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spaces.progress import Progress
from spaces.records import Directives, Offer, Report


class Saving(NamedTuple):
    """Where the checkpoints of a study go."""

    url: str
    """A folder that all workers share, or a URL that fsspec knows."""
    study: str
    seconds: float
    """Between two checkpoints of a worker at most."""


class Steering(Protocol):
    """What a pool needs of a controller; `search.steering.controller.Controller` has it.

    One thread at a time may call it; but `renew`, `progress` and `request_stop` may be called from any thread, while
    another call is under way, and answer at once.
    """

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Return the one seam: record a worker's reports, decide, fill its free lanes."""
        ...

    def handle_crash(self, worker: str) -> None:
        """Rescue the trials of a worker whose process crashed; one of them may be the cause."""
        ...

    def handle_departure(self, worker: str) -> None:
        """Release the trials of a worker whose machine is gone; none of them is the cause."""
        ...

    def renew(self, worker: str) -> bool:
        """Renew a worker's lease; False if it has expired."""
        ...

    def sweep(self) -> None:
        """Requeue the trials of workers whose leases have expired; to be called about every second."""
        ...

    def request_stop(self) -> None:
        """Dismiss every worker that exchanges from now on; its running trials are queued again."""
        ...

    def progress(self) -> Progress:
        """Return where the study stands."""
        ...

    def close(self) -> None:
        """Write how the run ended, and give the study back."""
        ...
