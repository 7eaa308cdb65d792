"""The pace of a worker's checkpoints, which cost one percent of its time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import final

SHARE = 0.01
"""Share of the time for checkpoints."""
LEAST_SECONDS = 2.0
"""Least seconds from the first step to the first checkpoint, and between any two."""


@final
class CheckpointTimer:
    """Says when the next checkpoint is due, by what the last one cost.

    Checkpoints that cost C seconds, one every T, cost C / T of the time, and a failure every M
    seconds costs T / 2 of training each: together the least at T = sqrt(2 C M) (Young, "A first
    order approximation to the optimum checkpoint interval", CACM 17(9), 1974; for C much smaller
    than M, Daly's higher order estimate, FGCS 22(3), 2006, agrees). M is unknown. T = C / SHARE is
    the optimum for M = T / (2 SHARE), fifty intervals: 100 s if a checkpoint costs 20 ms. If
    failures are rarer, one percent of the time is wasted.

    The first is written within seconds, so that a run that is often killed goes forward; its cost
    decides about the next.
    """

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: most seconds between checkpoints; infinite: none is ever due."""
        self._most = most
        self._clock = clock
        self._interval = self._interval_for(cost=0.0)
        self._since: float | None = None

    def note_training(self) -> None:
        """Note that training goes on, which makes a checkpoint worth something."""
        if self._since is None:
            self._since = self._clock()

    def is_due(self) -> bool:
        """Return True if the interval has passed, with some training in it."""
        return self._since is not None and self._clock() > self._since + self._interval

    def note_checkpoint(self, cost: float) -> None:
        """Note the cost in seconds of a checkpoint that was written, or could not be."""
        self._interval = self._interval_for(cost)
        self._since = None

    def add_cost(self, seconds: float) -> None:
        """Add the seconds until the last checkpoint was recorded to those of writing it."""
        self._interval = min(self._most, self._interval + seconds / SHARE)

    def _interval_for(self, cost: float) -> float:
        return min(self._most, max(LEAST_SECONDS, cost / SHARE)) if self._most < math.inf else math.inf
