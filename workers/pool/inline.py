"""The embedded pool: workers in threads of this process. No server, no cluster; starts at once.

A CPU gets one single-threaded worker per core rather than one worker with many threads (see `process`). torch releases
Python's lock inside an operation, so that the cores train side by side.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from spaces.records import Directives, Offer, Report
from workers.pool import Steering
from workers.pool.devices import default_workers
from workers.pool.process import prepare
from workers.pool.widths import employed

SIGNALS_EVERY = 0.2
"""Seconds: a signal that comes just before the main thread falls asleep is not noticed before it wakes."""


def run(controller: Steering, *, device: str, width: int | None = None, workers: int | None = None) -> None:
    """Train until the controller is done; the first error of a worker or of the controller ends all and is raised.

    `width` None: found as it trains (`widths`); `workers` None: as many as suit the device.
    """
    prepare()
    desk = _Desk(controller)
    launch = uuid.uuid4().hex[:8]  # a worker's name is never used again, so that a late write of it can be told
    names = [f"inline-{index}-{launch}" for index in range(workers or default_workers(device))]
    threads = [threading.Thread(target=desk.employ, args=(name, device, width), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(SIGNALS_EVERY)
    if desk.failure:
        raise desk.failure


class _Desk:
    """Lets several workers speak to one controller, one at a time."""

    def __init__(self, controller: Steering) -> None:
        self._controller = controller
        self._turn = threading.Lock()
        self.failure: BaseException | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        with self._turn:
            if self.failure:
                return Directives(done=True)
            try:
                return self._controller.exchange(reports, offer)
            except BaseException as error:
                self.failure = error
                raise

    def employ(self, name: str, device: str, width: int | None) -> None:
        """Run one worker to its end; what it raises sends the others home."""
        try:
            employed(name, self.exchange, device, width).run()
        except BaseException as error:
            with self._turn:
                self.failure = self.failure or error
