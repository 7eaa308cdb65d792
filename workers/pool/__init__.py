"""Pools place workers on devices: `inline` in this process, `ray_tune` on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spaces.records import Directives, Offer, Report


class Steering(Protocol):
    """What a pool needs of a controller."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """The one seam: record, decide, answer."""
        ...

    def lost(self, worker: str) -> None:
        """A worker died: its trials go back to the queue."""
        ...
