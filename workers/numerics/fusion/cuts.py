"""Places in the tensors of a generated kernel, and the division of its work into blocks.

Legend: L lanes, k blocks of a lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """An element of a tensor by its axes, its number in their order, or both, in C++.

    `aligned`: the element lies in the part that the block writes.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...] | None
    flat: str | None
    aligned: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """A hashable key; places with equal keys are equal."""
        return (self.shape, self.flat) if self.flat is not None else (self.shape, self.axes)


@dataclass(frozen=True)
class Cut:
    """The division of every tensor among the blocks: L k equal runs in the order of its axes."""

    lanes: int
    blocks_of_lane: int = 1

    @property
    def blocks(self) -> int:
        return self.lanes * self.blocks_of_lane

    def depth(self, shape: Sequence[int]) -> int | None:
        """Return how many leading axes decide an element's block; None if runs cut axes."""
        if not shape or shape[0] % self.lanes or not shape[0]:
            return None
        rows, left = shape[0] // self.lanes, self.blocks_of_lane
        for depth, size in enumerate((rows, *shape[1:]), start=1):
            if size % left == 0:
                return depth
            if left % size:
                return None
            left //= size
        return None

    def keeps(self, shape: Sequence[int], other: Sequence[int], touched: Iterable[int] = ()) -> bool:
        """Return whether elements that differ only in the axes `touched` lie in one block's run."""
        depth = self.depth(shape)
        if depth is None or depth != self.depth(other) or tuple(shape[:depth]) != tuple(other[:depth]):
            return False
        return all(axis >= depth for axis in touched)
