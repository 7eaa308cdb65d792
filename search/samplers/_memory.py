"""The memory of Optuna's samplers, bounded so that an ask costs the same in any study."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import final

import numpy as np
from numpy.typing import NDArray

from spaces.records import Constraints, Draws


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A trial that ended: its coordinates, and its costs, lower is better."""

    draws: Draws
    costs: tuple[float | None, ...]
    """One for each objective; None if it diverged or failed, or has no value of this objective."""
    constraints: Constraints = field(default_factory=dict[str, float | None])
    """The excess over each bound; None if it is not a finite number."""


@final
class BoundedMemory:
    """The `newest` trials seen last, and the `best` of all before them.

    A trial is better if it is beyond its bounds by less; of equal ones, if it dominates the other:
    it has no higher cost, and a lower one. With several costs those are kept that the fewest
    dominate.
    """

    def __init__(self, newest: int, best: int) -> None:
        self._limit = newest
        self._newest: deque[Observation] = deque()
        self._room = best
        self._best: list[Observation] = []
        self.worst: tuple[float, ...] | None = None
        """The highest of each cost ever seen; None before each has been seen."""
        self._highest: list[float | None] = []

    def __len__(self) -> int:
        return len(self._newest) + len(self._best)

    def __iter__(self) -> Iterator[Observation]:
        """Yield the trials kept, in the order in which they were seen."""
        yield from self._best
        yield from self._newest

    def add(self, seen: Observation) -> None:
        """Remember a trial, and forget the oldest one that is not among the best."""
        known = self._highest or [None] * len(seen.costs)
        pairs = zip(known, seen.costs, strict=True)
        self._highest = [max((cost for cost in pair if cost is not None), default=None) for pair in pairs]
        highest = [cost for cost in self._highest if cost is not None]
        self.worst = tuple(highest) if len(highest) == len(self._highest) else None
        self._newest.append(seen)
        if len(self._newest) <= self._limit:
            return
        oldest = self._newest.popleft()
        if None not in oldest.costs:
            self._best.append(oldest)
        if len(self._best) > self._room:
            dominated = count_dominators(self._best)
            # Of equals the one seen last goes.
            del self._best[len(dominated) - 1 - int(np.argmax(dominated[::-1]))]


def count_dominators(trials: Sequence[Observation]) -> NDArray[np.int64]:
    """Count for each trial how many others dominate it; all trials have all costs."""
    costs = np.array([trial.costs for trial in trials], dtype=np.float64)  # [trials, costs]
    # The sum of its excesses over its bounds; 0 if it is feasible.
    bounds = [trial.constraints.values() for trial in trials]
    excess = np.array([sum(inf if value is None else max(value, 0.0) for value in values) for values in bounds])
    ours, others = costs[:, None], costs[None]
    dominates = (ours <= others).all(-1) & (ours < others).any(-1)
    nearer, near = excess[:, None] < excess[None], excess[:, None] == excess[None]
    return (nearer | (near & dominates)).sum(0)
