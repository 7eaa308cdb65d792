"""The running trials, as the controller knows them: their workers, and their reports so far."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from dataclasses import dataclass
from typing import final

from search.objectives import NO_RATING, Rating
from spaces.records import LearnedSpline, Trial, TrialStart


@dataclass(slots=True)
class RunningTrial:
    """A running trial."""

    trial: Trial
    """The trial, with the fence of its newest start."""
    worker: str
    crashes: int = 0
    """Crashes of its workers since its last checkpoint."""
    step: int = 0
    first_step: int = 0
    """The step from which it trains in its lane: its parent's, or that of its checkpoint."""
    started: float = 0.0
    """Time at which it got the lane, by the controller's clock."""
    reported: float = 0.0
    """Time of its last report."""
    rating: Rating = NO_RATING
    splines: tuple[LearnedSpline, ...] = ()


@final
class RunningTrials:
    """Running trials by number, and by worker."""

    def __init__(self) -> None:
        self._running: dict[int, RunningTrial] = {}
        self._by_worker: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __getitem__(self, number: int) -> RunningTrial:
        return self._running[number]

    def numbers(self) -> KeysView[int]:
        """Return the numbers of the running trials."""
        return self._running.keys()

    def all(self) -> list[RunningTrial]:
        """Return the running trials at this moment; any thread may ask."""
        return list(self._running.values())

    def of(self, worker: str) -> frozenset[int]:
        """Return the trials that a worker has."""
        return frozenset(self._by_worker.get(worker, ()))

    def has(self, start: TrialStart, worker: str) -> bool:
        """Return True if the worker has this very start of the trial, not an older one."""
        running = self._running.get(start.number)
        return running is not None and running.worker == worker and running.trial.fence == start.fence

    def starts(self, numbers: Collection[int]) -> list[TrialStart]:
        """Return these trials with their fences, in order of number."""
        return [self._running[number].trial.start for number in sorted(numbers)]

    def put(self, running: RunningTrial) -> None:
        """Add a trial that starts."""
        self._running[running.trial.number] = running
        self._by_worker.setdefault(running.worker, set()).add(running.trial.number)

    def pop(self, number: int) -> RunningTrial:
        """Remove a trial that is not running any more."""
        running = self._running.pop(number)
        numbers = self._by_worker[running.worker]
        numbers.discard(number)
        if not numbers:
            del self._by_worker[running.worker]
        return running
