"""A share of the data held out of it, by content: a sequence is always on the same side.

Legend: L lanes, N sequences wanted, C sequences drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spaces.errors import PluginError
from workers.data.tasks import Batch, Task
from workers.numerics.randomness import hash_rows

Drawn = Callable[[int], Batch]
"""So many sequences [L, C, ...] from a stream."""

_SLACK = 1.25
"""More is drawn than is likely to be needed: a batch that is short repeats its own sequences."""
_SPARE = 16


def kept(task: Task, drawn: Drawn, count: int, one_in: int) -> Batch:
    """[L, N, ...] sequences of the task that are not held out when one in `one_in` is."""
    batch = drawn(math.ceil(_SLACK * count * one_in / (one_in - 1)) + _SPARE)
    return _first(batch, ~_is_held_out(task, batch, one_in), count)


def held_out(task: Task, drawn: Drawn, count: int, one_in: int) -> Batch:
    """[L, N, ...] sequences of the task that are held out when one in `one_in` is.

    Raises PluginError if there is none among many more than are wanted.
    """
    batch = drawn(math.ceil((_SLACK * count + _SPARE) * one_in))
    wanted = _is_held_out(task, batch, one_in)
    if not wanted.any(-1).all():
        raise PluginError(f"learning.held_out_one_in: {one_in} holds out no sequence of so small a task")
    return _first(batch, wanted, count)


def _is_held_out(task: Task, batch: Batch, one_in: int) -> Tensor:
    """[L, C] bool, by a hash of what tells the sequences apart."""
    return hash_rows(task.identity(batch)) % one_in == 0


def _first(batch: Batch, wanted: Tensor, count: int) -> Batch:
    """The first N sequences that are `wanted` [L, C], over again if there are fewer."""
    order = (~wanted).to(torch.int8).argsort(dim=-1, stable=True)
    place = torch.arange(count, device=wanted.device) % wanted.sum(-1, keepdim=True)
    index = order.gather(-1, place)
    lanes = torch.arange(len(wanted), device=wanted.device)[:, None]
    return {name: tensor[lanes, index] for name, tensor in batch.items()}
