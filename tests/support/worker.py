"""A controller that hands out given trials."""

from __future__ import annotations

from collections.abc import Sequence

from spaces.records import Directives, Offer, Report, Trial


class FakeController:
    """Hands out trials of one structure at a time, and keeps what it is told."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.waiting = list(trials)
        self.running: set[int] = set()
        self.reports: list[Report] = []
        self.offers: list[Offer] = []
        self.stop_at: dict[int, int] = {}

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.offers.append(offer)
        self.reports += reports
        stops = [r.number for r in reports if r.state == "running" and r.step >= self.stop_at.get(r.number, 10**9)]
        self.running -= {r.number for r in reports if r.state != "running"} | set(stops)
        structure = offer.structure or (self.waiting[0].structure if self.waiting else None)
        start = [t for t in self.waiting if t.structure == structure][: offer.lanes]
        self.waiting = [t for t in self.waiting if t not in start]
        self.running |= {t.number for t in start}
        return Directives(stop=tuple(stops), start=tuple(start), done=not self.waiting and not self.running)
