"""A worker: one device, one pack at a time, steered by `exchange`.

The loop is the same wherever it runs. A lane freed by completion, divergence or a stopping policy is filled with the
next trial of the same structure while its neighbours go on; when a structure has no trials left, the pack narrows with
its last lanes, and then the worker asks for another structure.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spaces.records import Directives, Offer, Report
from workers.pack import Pack

Exchange = Callable[[Sequence[Report], Offer], Directives]
"""Reports in, directives out; returns only when the reports are recorded."""

EXCHANGE_SECONDS = 2.0
"""A worker speaks to the controller at least this often, so that a stop is heard."""
CHECK_STEPS = 50
"""Steps between looks at the clock and at diverged lanes."""


@dataclass(kw_only=True)
class Worker:
    """Trains what the controller gives it until the controller says that it is done."""

    name: str
    exchange: Exchange
    device: str = "cpu"
    width: int
    """Most lanes of a pack."""
    idle: Callable[[], None] = field(default=lambda: time.sleep(0.2))
    """Called when there is nothing to train yet, because others still run what might come back."""
    pack: Pack | None = None

    def run(self) -> None:
        """Exchange and train until done."""
        reports: list[Report] = []
        while True:
            offer = self._offer()
            directives = self.exchange(reports, offer)
            if directives.done:
                return
            self._apply(directives)
            reports = self._train() if self.pack else []
            if self.pack is None and offer.structure is None:
                self.idle()

    def _offer(self) -> Offer:
        structure, lanes, steps, room = None, self.width, 0, 0
        if self.pack:
            structure, lanes = self.pack.structure, self.width - len(self.pack.running)
            steps, room = self.pack.take_counts()
        return Offer(
            worker=self.name,
            lanes=lanes,
            structure=structure,
            host=socket.gethostname(),
            device=self.device,
            steps=steps,
            room=room,
        )

    def _apply(self, directives: Directives) -> None:
        if self.pack is None:
            if directives.start:
                self.pack = Pack(directives.start[0], width=len(directives.start), device=self.device)
                self.pack.place(directives.start)
            return
        self.pack.release(directives.stop)
        self.pack.resize(fitting(self.pack.width, len(self.pack.running) + len(directives.start)))
        self.pack.place(directives.start)
        if not self.pack.running:
            self.pack = None

    def _train(self) -> list[Report]:
        assert self.pack is not None
        deadline = time.monotonic() + EXCHANGE_SECONDS
        reports: list[Report] = []
        while not reports and time.monotonic() < deadline:
            reports = self.pack.train(CHECK_STEPS)
        return reports


def fitting(width: int, needed: int) -> int:
    """The width for `needed` lanes: wider when they do not fit, narrower when half of them would be idle.

    Every new width costs a recording, so that the width stays as long as most lanes train.
    """
    return needed if needed > width or 2 * needed <= width else width
