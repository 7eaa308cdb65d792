"""A share of the data, held out by content. L lanes, N sequences wanted, C sequences drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from workers.data.tasks import Batch, Task
from workers.numerics.randomness import hash_rows

Drawn = Callable[[int], Batch]
"""Draws so many sequences [L, C, ...] from a stream."""

_SLACK = 1.25
"""More is drawn than is likely to be needed: a batch that is short repeats its own sequences."""
_SPARE = 16
_FOUND: set[tuple[str, torch.device]] = set()
"""Requests (task, one in how many, how many wanted) that were fulfilled on devices but CPUs."""


def draw_kept(task: Task, drawn: Drawn, count: int, one_in: int) -> Batch:
    """Return sequences [L, N, ...] of the task that are kept when one in `one_in` is held out."""
    batch = drawn(math.ceil(_SLACK * count * one_in / (one_in - 1)) + _SPARE)
    return _first(batch, ~_is_held_out(task, batch, one_in), count)


def draw_held_out(task: Task, drawn: Drawn, count: int, one_in: int) -> Batch:
    """Return held-out sequences [L, N, ...] of the task, one in `one_in`, or raise PluginError."""
    batch = drawn(math.ceil((_SLACK * count + _SPARE) * one_in))
    wanted = _is_held_out(task, batch, one_in)
    # A GPU would be waited for at each step: there it is asked once, as it is a matter of the task.
    asked = plugins.canonical_json([plugins.name_of(task), plugins.structure_of(task), one_in, count])
    key = (asked, wanted.device)
    if key not in _FOUND and not wanted.is_meta:
        if not wanted.any(-1).all():
            raise PluginError(f"learning.held_out_one_in: {one_in} holds out no sequence of so small a task")
        if wanted.device.type != "cpu":
            _FOUND.add(key)
    return _first(batch, wanted, count)


def _is_held_out(task: Task, batch: Batch, one_in: int) -> Tensor:
    """Return True for held-out sequences [L, C], by a hash of their identities."""
    return hash_rows(task.identity(batch)) % one_in == 0


def _first(batch: Batch, wanted: Tensor, count: int) -> Batch:
    """Return the first N sequences that are `wanted` [L, C], over again if there are fewer.

    Their number differs from lane to lane, but tensors are stacked: so each lane repeats its own.
    """
    order = (~wanted).to(torch.int8).argsort(dim=-1, stable=True)
    turn = torch.arange(count, device=wanted.device) % wanted.sum(-1, keepdim=True).clamp(min=1)
    index = order.gather(-1, turn)
    lanes = torch.arange(len(wanted), device=wanted.device)[:, None]
    return {name: tensor[lanes, index] for name, tensor in batch.items()}
