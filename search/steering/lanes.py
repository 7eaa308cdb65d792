"""The trials in training, as the controller knows them: whose each is, and what its reports have said so far."""

from __future__ import annotations

from collections.abc import Collection, KeysView
from dataclasses import dataclass
from typing import final

from spaces.records import Architecture, Trial, TrialStart


@dataclass(slots=True)
class Lane:
    """A trial in training."""

    trial: Trial
    """With the fence of its newest start."""
    worker: str
    step: int = 0
    objective: float | None = None
    architectures: tuple[Architecture, ...] = ()


@final
class Lanes:
    """Lanes by number of their trial, and by worker."""

    def __init__(self) -> None:
        self._lanes: dict[int, Lane] = {}
        self._crews: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return len(self._lanes)

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def numbers(self) -> KeysView[int]:
        """The trials in training."""
        return self._lanes.keys()

    def of(self, worker: str) -> frozenset[int]:
        """The trials that a worker has."""
        return frozenset(self._crews.get(worker, ()))

    def has(self, one: TrialStart, worker: str) -> bool:
        """Whether the worker has this very start of the trial."""
        lane = self._lanes.get(one.number)
        return lane is not None and lane.worker == worker and lane.trial.fence == one.fence

    def held(self, numbers: Collection[int]) -> list[TrialStart]:
        """These trials with their fences, in order of number."""
        return [TrialStart(number, self._lanes[number].trial.fence) for number in sorted(numbers)]

    def put(self, lane: Lane) -> None:
        """A trial begins to train."""
        self._lanes[lane.trial.number] = lane
        self._crews.setdefault(lane.worker, set()).add(lane.trial.number)

    def pop(self, number: int) -> Lane:
        """A trial trains no more; its lane."""
        lane = self._lanes.pop(number)
        crew = self._crews[lane.worker]
        crew.discard(number)
        if not crew:
            del self._crews[lane.worker]
        return lane
