"""Greedy algorithms of CLRS-Text: activities and tasks. Legend: as in `algorithms`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import THOUSAND, Algorithm, Parts, list_of, redraw_first, within
from workers.data.clrs.writing import places, thousandths, write_fields, write_list
from workers.data.splits import Split, below, draw_in_split


@dataclass(frozen=True, kw_only=True)
class ActivitySelector(Algorithm):
    """The activities to take, as many as possible, none before another's end (section 16.1).

    Start and end are two uniform numbers in order. Of activities that end together the first is
    first. The sum of the first activity's numbers modulo 1 and the others decide the split.
    """

    asked: str = "selected"

    def numbers(self, size: int) -> int:
        return 2 * size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        times = within(below(fractions, THOUSAND), 2 * sizes, 0)  # start, end, start, end, ...
        time, others = times[..., :1], times[..., 2:].unflatten(-1, (-1, 2)).sort(-1).values.flatten(-2)
        total = draw_in_split(fractions[..., 1], torch.cat([sizes, others], -1), THOUSAND, split)
        pair = torch.cat([time, (total[..., None] - time) % THOUSAND], -1).sort(-1).values
        return torch.cat([pair, others], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        start, end = example[..., ::2], example[..., 1::2]
        taken, free = torch.zeros_like(start, dtype=torch.bool), torch.zeros_like(sizes)
        order = within(end, sizes, THOUSAND).sort(stable=True, dim=-1).indices
        for rank in range(order.shape[-1]):
            activity = order[..., rank : rank + 1]
            takes = (start.gather(-1, activity) >= free) & (rank < sizes)
            taken = taken.scatter(-1, activity, takes)
            free = torch.where(takes, end.gather(-1, activity), free)
        given = write_fields({"s": thousandths(start), "f": thousandths(end)}, sizes)
        return Parts(given=given, answer=write_list(taken.long()[..., None], sizes))

    def longest(self, size: int) -> Parts[str]:
        times = list_of("0.111", size)
        return Parts(given=f"s: {times}, f: {times}", answer=list_of("0", size))


LATEST = 99
"""The last deadline, as a number has two digits."""


@dataclass(frozen=True, kw_only=True)
class TaskScheduling(Algorithm):
    """The tasks of unit length that are done in time, the largest penalty first (section 16.5).

    As in CLRS-Text a task is done only if fewer than its deadline are done. Deadlines are uniform
    on 1 .. n, penalties on 0 .. 0.999, equals in order. The first penalty and the others decide the
    split.
    """

    asked: str = "selected"

    def numbers(self, size: int) -> int:
        return 2 * size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        deadlines = 1 + below(fractions[..., 1::2], sizes.clamp(max=LATEST))
        numbers = torch.stack([below(fractions[..., ::2], THOUSAND), deadlines], -1).flatten(-2)
        numbers = within(numbers, 2 * sizes, 0)  # penalty and deadline, penalty and deadline, ...
        return redraw_first(numbers, fractions[..., 0], sizes, THOUSAND, split)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        penalty, deadline = example[..., ::2], example[..., 1::2]
        done, count = torch.zeros_like(penalty, dtype=torch.bool), torch.zeros_like(sizes)
        order = within(penalty, sizes, -1).sort(stable=True, dim=-1, descending=True).indices
        for rank in range(order.shape[-1]):
            task = order[..., rank : rank + 1]
            takes = (count < deadline.gather(-1, task)) & (rank < sizes)
            done = done.scatter(-1, task, takes)
            count = count + takes
        given = write_fields({"d": places(deadline), "w": thousandths(penalty)}, sizes)
        return Parts(given=given, answer=write_list(done.long()[..., None], sizes))

    def longest(self, size: int) -> Parts[str]:
        deadline = str(min(size, LATEST))
        given = f"d: {list_of(deadline, size)}, w: {list_of('0.111', size)}"
        return Parts(given=given, answer=list_of("0", size))
