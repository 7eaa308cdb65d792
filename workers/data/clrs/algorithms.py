"""Algorithms of CLRS-Text, and those over keys: examples, their answers, and how both are written.

Keys are whole numbers of thousandths, so that the text is exact. An example is a row of numbers [L,
N, m]. Which split it belongs to follows from a hash of them in which what a small example has no
use for is 0 at the end, so that one example belongs to one split, whatever larger ones are drawn
beside it. Legend: L lanes, N sequences, n the size of the longest example, `sizes` [L, N, 1], `...`
is L, N.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from workers.data.clrs.traces import States
from workers.data.clrs.writing import join_items, places, thousandths, write, write_fields, write_list
from workers.data.splits import Split, below, draw_in_split

THOUSAND = 1000
Piece = TypeVar("Piece", str, Tensor)


class Parts(NamedTuple, Generic[Piece]):
    """The question and the answer of an example, as text or as tokens with blanks."""

    given: Piece
    answer: Piece


class Trace(NamedTuple, Generic[Piece]):
    """The numbers before the first step, and after each step but the last."""

    start: Piece
    steps: Piece


@dataclass(frozen=True, kw_only=True)
class Algorithm(ABC):
    """One algorithm; `asked` is the name of its answer."""

    asked: str

    @abstractmethod
    def numbers(self, size: int) -> int:
        """Return how many uniform numbers an example is drawn from."""

    @abstractmethod
    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        """Draw examples [..., m] of a split, from uniform `fractions` [..., `numbers`] of 2^32."""

    @abstractmethod
    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        """Write examples [..., m] out."""

    @abstractmethod
    def longest(self, size: int) -> Parts[str]:
        """Return the longest that an example of this size can be."""


class Traced(Algorithm):
    """An algorithm whose steps can be written out."""

    @abstractmethod
    def trace(self, example: Tensor, sizes: Tensor) -> Trace[Tensor]:
        """Return the steps that examples [..., m] take."""

    @abstractmethod
    def longest_trace(self, size: int) -> Trace[str]:
        """Return a trace at least as long as that of any example of this size."""


class Keyed(Algorithm):
    """An algorithm over uniform keys, 0 .. 0.999; the first and the others decide the split."""

    def numbers(self, size: int) -> int:
        return size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        keys = within(below(fractions, THOUSAND), sizes, 0)
        return redraw_first(keys, fractions[..., 0], sizes, THOUSAND, split)

    def longest(self, size: int) -> Parts[str]:
        return Parts(given=f"key: {list_of('0.111', size)}", answer=str(size - 1))


@dataclass(frozen=True, kw_only=True)
class Sorting(Keyed, Traced):
    """Sorts keys; the trace shows all of them after each step."""

    states: Callable[[Tensor, Tensor], States]
    most_states: Callable[[int], int]
    asked: str = "pred"

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        ordered = within(example, sizes, THOUSAND).sort(-1).values
        given = write_fields({"key": thousandths(example)}, sizes)
        return Parts(given=given, answer=write_list(thousandths(ordered), sizes))

    def longest(self, size: int) -> Parts[str]:
        return Parts(given=f"key: {list_of('0.111', size)}", answer=list_of("0.111", size))

    def trace(self, example: Tensor, sizes: Tensor) -> Trace[Tensor]:
        states, start = self.states(example, sizes), write_list(thousandths(example), sizes)
        shown = write_list(thousandths(states.keys), sizes[..., None])
        return Trace(start=start, steps=join_items(shown, _but_last(states.made), ", "))

    def longest_trace(self, size: int) -> Trace[str]:
        keys = list_of("0.111", size)
        return Trace(start=keys, steps=", ".join([keys] * (self.most_states(size) - 1)))


@dataclass(frozen=True, kw_only=True)
class Minimum(Keyed, Traced):
    """The place of the smallest key, the first of equals; the trace shows the smallest so far."""

    asked: str = "min"

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        smallest = within(example, sizes, THOUSAND).argmin(-1, keepdim=True)
        given = write_fields({"key": thousandths(example)}, sizes)
        return Parts(given=given, answer=places(smallest).flatten(-2))

    def trace(self, example: Tensor, sizes: Tensor) -> Trace[Tensor]:
        smallest = torch.stack([example[..., : last + 1].argmin(-1) for last in range(1, example.shape[-1])], -1)
        made = torch.arange(1, example.shape[-1], device=example.device) < sizes
        return Trace(start=write(["0"], sizes), steps=join_items(places(smallest), _but_last(made), ", "))

    def longest_trace(self, size: int) -> Trace[str]:
        return Trace(start="0", steps=", ".join(str(last) for last in range(1, size - 1)))


@dataclass(frozen=True, kw_only=True)
class Quickselect(Keyed):
    """The place of the median, of an even number the larger of the middle two.

    Of equal keys the first counts as the smallest. Published answers count equal keys in the order
    in which partitions leave them.
    """

    asked: str = "median"

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        order = within(example, sizes, THOUSAND).sort(stable=True, dim=-1).indices
        median = order.gather(-1, sizes // 2)
        given = write_fields({"key": thousandths(example)}, sizes)
        return Parts(given=given, answer=places(median).flatten(-2))


@dataclass(frozen=True, kw_only=True)
class BinarySearch(Algorithm):
    """The first sorted key not below the target, else the last; the target decides the split."""

    asked: str = "return"

    def numbers(self, size: int) -> int:
        return 1 + size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        keys = within(below(fractions[..., 1:], THOUSAND), sizes, THOUSAND).sort(-1).values
        keys = within(keys, sizes, 0)
        target = draw_in_split(fractions[..., 0], torch.cat([sizes, keys], -1), THOUSAND, split)
        return torch.cat([target[..., None], keys], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        target, keys = example[..., :1], example[..., 1:]
        smaller = (within(keys, sizes, THOUSAND) < target).sum(-1, keepdim=True)
        shown = write_list(thousandths(keys), sizes)
        return Parts(
            given=write(["key: ", shown, ", target: ", thousandths(target).flatten(-2)], sizes),
            answer=places(torch.minimum(smaller, sizes - 1)).flatten(-2),
        )

    def longest(self, size: int) -> Parts[str]:
        return Parts(given=f"key: {list_of('0.111', size)}, target: 0.111", answer=str(size - 1))


@dataclass(frozen=True, kw_only=True)
class MaximumSubarray(Keyed):
    """First and last place of the part with the largest sum, by Kadane's algorithm (Bentley 1984).

    Keys are uniform on -0.999 .. 0.999. Of equal sums the one that ends first, of these the
    longest. The first key and the others decide the split.
    """

    asked: str = "start, end"

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        choices = 2 * THOUSAND - 1
        keys = within(below(fractions, choices), sizes, 0)
        return within(redraw_first(keys, fractions[..., 0], sizes, choices, split) - (THOUSAND - 1), sizes, 0)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        total = best = example[..., :1]
        start = first = last = torch.zeros_like(total)
        for index in range(1, example.shape[-1]):
            key = example[..., index : index + 1]
            goes_on = total >= 0
            total = torch.where(goes_on, total + key, key)
            start = torch.where(goes_on, start, index)
            better = (total > best) & (index < sizes)
            best = torch.where(better, total, best)
            first, last = torch.where(better, start, first), torch.where(better, index, last)
        given = write_fields({"key": thousandths(example)}, sizes)
        answer = write([places(first).flatten(-2), ", ", places(last).flatten(-2)], sizes)
        return Parts(given=given, answer=answer)

    def longest(self, size: int) -> Parts[str]:
        return Parts(given=f"key: {list_of('-0.111', size)}", answer=f"{size - 1}, {size - 1}")


def redraw_first(numbers: Tensor, fraction: Tensor, sizes: Tensor, choices: int, split: Split) -> Tensor:
    """Return numbers [..., m], the first drawn anew below `choices` to be of this split."""
    rest = numbers[..., 1:]
    first = draw_in_split(fraction, torch.cat([sizes, rest], -1), choices, split)
    return torch.cat([first[..., None], rest], -1)


BLOCK = 20
"""Size of a block of neighbours in which `move_first` draws: at least 16, divides `THOUSAND`."""


def move_first(numbers: Tensor, fraction: Tensor, sizes: Tensor, split: Split) -> Tensor:
    """Return numbers [..., m], the first drawn anew in its block of 20 to be of this split."""
    rest, block = numbers[..., 1:], torch.div(numbers[..., :1], BLOCK, rounding_mode="floor")
    drawn = draw_in_split(fraction, torch.cat([sizes, rest, block], -1), BLOCK, split)
    return torch.cat([block * BLOCK + drawn[..., None], rest], -1)


def within(values: Tensor, sizes: Tensor, filler: int) -> Tensor:
    """Return values [..., n] with `filler` from each example's size on."""
    return values.masked_fill(torch.arange(values.shape[-1], device=values.device) >= sizes, filler)


def list_of(item: str, count: int) -> str:
    """Return a list of one item over and over, as text."""
    return f"[{' '.join([item] * count)}]"


def matrix_text(rows: Iterable[Iterable[str]]) -> str:
    """Return a list of lists of items, as text: `[[0 1], [1 0]]`."""
    lists = (f"[{' '.join(row)}]" for row in rows)
    return f"[{', '.join(lists)}]"


def matrix_of(item: str, size: int) -> str:
    """Return a matrix of one item over and over, as text."""
    return matrix_text([[item] * size] * size)


def _but_last(made: Tensor) -> Tensor:
    """Return the steps [..., T] that were made, without the last of them."""
    count = made.cumsum(-1)
    return made & (count < count[..., -1:])
