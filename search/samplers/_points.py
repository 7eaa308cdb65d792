"""Samplers without memory: the coordinates of trial n are a pure function of (space, seed, n)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from search.samplers import Strategy
from spaces.records import Outcome, Trial
from spaces.seeds import GAMMA

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space


class Points(ABC):
    """A sequence of points in the unit cube [0, 1)^d; each depends on its index alone."""

    @abstractmethod
    def rows(self, first: int, count: int) -> NDArray[np.float64]:
        """Return the points first .. first + count - 1, [count, d]."""


@final
class RandomPoints(Points):
    """Independent uniform coordinates: one SplitMix64 stream per draw, by seed and draw's name.

    Adding or removing a draw leaves the coordinates of the others as they were.
    Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """

    def __init__(self, seed: int, draws: Sequence[Draw]) -> None:
        # Equal names in the group's and the trial's block get different streams.
        texts = [f"{seed}/{draw.scope}/{draw.name}".encode() for draw in draws]
        keys = [int.from_bytes(blake2b(text, digest_size=8).digest(), "little") for text in texts]
        self._keys = np.array(keys, dtype=np.uint64)

    def rows(self, first: int, count: int) -> NDArray[np.float64]:
        indices = np.arange(first + 1, first + count + 1, dtype=np.uint64)
        words = self._keys + indices[:, None] * np.uint64(GAMMA)
        # `spaces.seeds.mix64` of each word.
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        words ^= words >> np.uint64(31)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


@final
class PointStrategy(Strategy):
    """Trials at the points of two sequences: one over draws of groups, one over those of trials."""

    look_ahead = 4096

    def __init__(self, space: Space, groups: Points, trials: Points, size: int | None = None) -> None:
        self._space = space
        self._groups = groups
        self._trials = trials
        self.size = size
        self._columns = {draw.name: column for column, draw in enumerate(space.draws)}

    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers that are below `size`."""
        if self.size is not None:
            numbers = range(numbers.start, min(numbers.stop, self.size))
        if not numbers:
            return []
        group, rows = self._space.search.group, self._trials.rows(numbers.start, len(numbers)).tolist()
        first, last = numbers[0] // group, numbers[-1] // group
        shared = self._groups.rows(first, last - first + 1).tolist()
        return [
            self._trial(number, shared[number // group - first] + row)
            for number, row in zip(numbers, rows, strict=True)
        ]

    def _trial(self, number: int, point: list[float]) -> Trial:
        columns = self._columns
        return self._space.sample(number, lambda draw: point[columns[draw.name]])

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Ignore the outcomes: the points do not depend on them."""
