"""The running trials, as the controller knows them: which worker has each, and what its reports have said so far."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from dataclasses import dataclass
from typing import final

from spaces.records import Architecture, Trial, TrialStart


@dataclass(slots=True)
class Lane:
    """A running trial."""

    trial: Trial
    """With the fence of its newest start."""
    worker: str
    step: int = 0
    objective: float | None = None
    architectures: tuple[Architecture, ...] = ()


@final
class LaneTable:
    """Lanes by number of their trial, and by worker."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._by_worker: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def numbers(self) -> KeysView[int]:
        """The running trials."""
        return self._lanes.keys()

    def of(self, worker: str) -> frozenset[int]:
        """The trials that a worker has."""
        return frozenset(self._by_worker.get(worker, ()))

    def has(self, one: TrialStart, worker: str) -> bool:
        """Whether the worker has this very start of the trial.

        The number alone would not do: a worker that was silent may still train a start that others have taken over.
        """
        lane = self._lanes.get(one.number)
        return lane is not None and lane.worker == worker and lane.trial.fence == one.fence

    def starts(self, numbers: Collection[int]) -> list[TrialStart]:
        """These trials with their fences, in order of number."""
        return [self._lanes[number].trial.start for number in sorted(numbers)]

    def put(self, lane: Lane) -> None:
        """Add a trial that starts."""
        self._lanes[lane.trial.number] = lane
        self._by_worker.setdefault(lane.worker, set()).add(lane.trial.number)

    def pop(self, number: int) -> Lane:
        """Remove a trial that is not running any more; its lane."""
        lane = self._lanes.pop(number)
        numbers = self._by_worker[lane.worker]
        numbers.discard(number)
        if not numbers:
            del self._by_worker[lane.worker]
        return lane
