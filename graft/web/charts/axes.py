"""The range of an axis, and where its ticks are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from graft.report.rendering.formatting import number

_TICKS = 5
_NARROW, _SMALL = 1e-9, 1e-280
"""A range so narrow beside its numbers, or beside the least of them, has no numbers to write at its ticks."""


@dataclass(frozen=True)
class Axis:
    """The range of an axis; logarithmic where `log`."""

    low: float
    high: float
    log: bool = False
    words: Sequence[str] = ()
    """What 0, 1, 2 ... stand for, on an axis of words."""

    @classmethod
    def over(cls, values: Iterable[float], *, may_be_log: bool = True) -> Self:
        """Return an axis that holds the values; logarithmic if they are positive and over a factor of twenty.

        Around a single value it goes a twentieth of that to both sides.
        """
        known = [value for value in values if math.isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        size = max(abs(low), abs(high))
        if high - low <= _NARROW * max(size, _SMALL):
            room = size / 20 if size > _SMALL else 1.0
            return cls(low - room, high + room)
        return cls(low, high, may_be_log and low > 0 and high > 20 * low)

    @classmethod
    def of_words(cls, words: Sequence[str]) -> Self:
        """Return an axis with a place for each word; their values are 0, 1, 2 ..."""
        return cls(-0.5, len(words) - 0.5, words=words)

    def place(self, value: float) -> float:
        """Where a value is, 0 at the low end and 1 at the high one."""
        if self.log:
            low = math.log(self.low)  # a quotient may be beyond all numbers
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round numbers in the range, or the places of the words."""
        if self.words:
            return [float(place) for place in range(len(self.words))]
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if last > first:
                return [10.0**power for power in range(first, last + 1, (last - first) // _TICKS + 1)]
        step = _round_step((self.high - self.low) / _TICKS)
        return [step * count for count in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]

    def write(self, tick: float) -> str:
        """Return the label of a tick."""
        return self.words[int(tick)] if self.words else number(tick)


def _round_step(step: float) -> float:
    """Return the next of 1, 2, 5, 10, 20 ... that is no smaller."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))
