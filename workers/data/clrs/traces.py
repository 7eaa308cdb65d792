"""The steps of the sorting algorithms of "Introduction to Algorithms" (CLRS).

Keys are [L, N, n], of which the first `sizes` [L, N, 1] are sorted; the states are those that
CLRS-Text records after the initial one. Sequences that have fewer steps than others skip some.
Legend: L lanes, N sequences, n keys of the longest, T steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class States(NamedTuple):
    """The keys [L, N, T, n] after each step; `made` [L, N, T] where the sequence makes it."""

    keys: Tensor
    made: Tensor


class _Record(list[States]):
    """States of one step each, `keys` [L, N, n] and `made` [L, N, 1]."""

    def states(self) -> States:
        """Return all of them as one."""
        return States(torch.stack([state.keys for state in self], -2), torch.cat([state.made for state in self], -1))


def insertion_sort(keys: Tensor, sizes: Tensor) -> States:
    """Record the keys after each insertion (section 2.1), up to which they are sorted."""
    record = _Record()
    for last in range(1, keys.shape[-1]):
        before, after = keys.tensor_split([last + 1], dim=-1)
        record.append(States(torch.cat([before.sort(-1).values, after], -1), last < sizes))
    return record.states()


def bubble_sort(keys: Tensor, sizes: Tensor) -> States:
    """Record the keys after each comparison of neighbours (problem 2-2), from the end downwards."""
    record = _Record()
    for start in range(keys.shape[-1] - 1):
        for index in reversed(range(start + 1, keys.shape[-1])):
            made = index < sizes
            left, right = keys[..., index - 1], keys[..., index]
            pair = torch.stack([torch.minimum(left, right), torch.maximum(left, right)], -1)
            moved = torch.cat([keys[..., : index - 1], pair, keys[..., index + 1 :]], -1)
            keys = torch.where(made, moved, keys)
            record.append(States(keys, made))
    return record.states()


def heapsort(keys: Tensor, sizes: Tensor) -> States:
    """Record the keys after each step of max-heapify and each swap with the root (6.2 to 6.4)."""
    record = _Record()
    for node in reversed(range(keys.shape[-1])):
        keys = _sift_down(keys, torch.full_like(sizes, node), sizes, node < sizes, record)
    root = torch.zeros_like(sizes)
    for last in reversed(range(1, keys.shape[-1])):
        made = last < sizes
        keys = _swap(keys, root, torch.full_like(sizes, last), made)
        record.append(States(keys, made))
        keys = _sift_down(keys, root, torch.full_like(sizes, last), made, record)
    return record.states()


def _sift_down(keys: Tensor, node: Tensor, heap: Tensor, made: Tensor, record: _Record) -> Tensor:
    """Return the keys after one sinks from `node` among the first `heap`; all others [L, N, 1]."""
    for _ in range(keys.shape[-1].bit_length()):  # the levels of the heap
        largest = node
        for child in (2 * node + 1, 2 * node + 2):
            inside = child.clamp(max=keys.shape[-1] - 1)
            above = (child < heap) & (keys.gather(-1, inside) > keys.gather(-1, largest))
            largest = torch.where(above, inside, largest)
        keys = _swap(keys, node, largest, made)
        record.append(States(keys, made))
        made, node = made & (largest != node), largest
    return keys


def most_of_heapsort(size: int) -> int:
    """Return an upper bound of the number of states that sorting `size` keys records."""
    levels = [0] * size + [0] * (size + 1)
    for node in reversed(range(size)):
        levels[node] = 1 + levels[2 * node + 1]
    return sum(levels) + sum(1 + last.bit_length() for last in range(1, size))


def quicksort(keys: Tensor, sizes: Tensor) -> States:
    """Record the keys after each comparison with the pivot and each exchange of it (section 7.1).

    The pivot is the last key of its part, and the part that comes next is the leftmost one that has
    two keys or more. CLRS-Text takes the first comparison, which moves nothing, for the initial
    state.
    """
    record, index = _Record(), torch.arange(keys.shape[-1], device=keys.device)
    settled = index >= sizes  # [L, N, n]
    for _ in range(keys.shape[-1] - 1):
        longer = ~settled[..., :-1] & ~settled[..., 1:]
        made, first = longer.any(-1, keepdim=True), longer.int().argmax(-1, keepdim=True)
        ends = settled & (index > first)
        last = torch.where(ends.any(-1, keepdim=True), ends.int().argmax(-1, keepdim=True), keys.shape[-1]) - 1
        keys, middle = _partition(keys, first, last.clamp(min=0), made, record)
        settled = settled | (made & (index == middle))
    keys, made = record.states()
    return States(keys[..., 1:, :], made[..., 1:])


def _partition(keys: Tensor, first: Tensor, last: Tensor, made: Tensor, record: _Record) -> tuple[Tensor, Tensor]:
    """Return the keys split around the last of `first` .. `last`, and its place then, [L, N, 1]."""
    pivot, middle = keys.gather(-1, last), first
    for index in range(keys.shape[-1] - 1):
        compared = made & (first <= index) & (index < last)
        small = compared & (keys[..., index : index + 1] <= pivot)
        keys = _swap(keys, middle, torch.full_like(middle, index), small)
        middle = middle + small
        record.append(States(keys, compared))
    keys = _swap(keys, middle, last, made)
    record.append(States(keys, made))
    return keys, middle


def _swap(keys: Tensor, first: Tensor, second: Tensor, where: Tensor) -> Tensor:
    """Return the keys with those at two places [L, N, 1] exchanged where `where` is True."""
    left, right = keys.gather(-1, first), keys.gather(-1, second)
    keys = keys.scatter(-1, first, torch.where(where, right, left))
    return keys.scatter(-1, second, torch.where(where, left, right))
