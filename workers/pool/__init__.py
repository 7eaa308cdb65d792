"""Pools place workers on devices: `inline` in this process, `ray_tune` on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from spaces.records import Directives, Offer, Report


class Saving(NamedTuple):
    """Where the checkpoints of a study go."""

    place: str
    """A folder that all workers share, or a URL that fsspec knows."""
    study: str
    seconds: float
    """How often each worker writes one."""


class Steering(Protocol):
    """What a pool needs of a controller."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """The one seam: record, decide, answer."""
        ...

    def handle_crash(self, worker: str) -> None:
        """A worker died: its trials go back to the queue."""
        ...

    def handle_departure(self, worker: str) -> None:
        """A worker went down with its machine: its trials go back to the queue, and none of them is why."""
        ...

    def renew(self, worker: str) -> bool:
        """A worker lives; False if its lease ran out. Answers at once, whatever else is under way."""
        ...

    def sweep(self) -> None:
        """Called every second or so: workers that fell silent lose their trials."""
        ...
