"""What a learning sampler remembers: a bounded part of the history, so that an ask costs the same in any study."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import final

from spaces.records import Draws


@dataclass(frozen=True, slots=True)
class Observation:
    """A trial that ended: its coordinates and its loss (lower is better; None: it diverged or failed)."""

    draws: Draws
    loss: float | None


@final
class BoundedHistory:
    """The `newest` trials told last, and the `best` of all before them."""

    def __init__(self, newest: int, best: int) -> None:
        self._limit = newest
        self._newest: deque[Observation] = deque()
        self._room = best
        self._best: list[tuple[float, int, Observation]] = []
        self._told = 0
        self.worst: float | None = None
        """The highest loss ever told."""

    def __len__(self) -> int:
        return len(self._newest) + len(self._best)

    def __iter__(self) -> Iterator[Observation]:
        """The trials kept, in the order in which they were told."""
        yield from (seen for _, _, seen in sorted(self._best, key=lambda entry: -entry[1]))
        yield from self._newest

    def add(self, seen: Observation) -> None:
        """Remember a trial; the oldest one that is not among the best is forgotten."""
        if seen.loss is not None:
            self.worst = seen.loss if self.worst is None else max(self.worst, seen.loss)
        self._newest.append(seen)
        if len(self._newest) > self._limit:
            self._retire(self._newest.popleft())

    def _retire(self, seen: Observation) -> None:
        self._told += 1
        if seen.loss is None:
            return
        # The heap's head is the worst; of equals the one told last.
        entry = (-seen.loss, -self._told, seen)
        if len(self._best) < self._room:
            heappush(self._best, entry)
        else:
            heappushpop(self._best, entry)
