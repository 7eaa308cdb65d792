"""Loops of a row function: run by torch, or recorded as loops when C++ is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import Tensor

_THREAD = threading.local()


def iterate(step: Callable[..., tuple[Tensor, ...]], state: tuple[Tensor, ...], steps: int) -> tuple[Tensor, ...]:
    """Return the state, numbers [..., q, 1] of each row, after so many steps of the state alone.

    `step` must not change a row that is finished: a CPU stops early, and generated code row by row.
    """
    if is_recording():
        return tuple(_marked_end([*step(*_marked_begin([*state], steps))]))
    for _ in range(steps):
        before, state = state, step(*state)
        if state[0].device.type == "cpu" and all(map(_same, before, state)):  # no wait for a GPU
            break
    return state


def is_recording() -> bool:
    """Return whether this thread records a row function now."""
    return getattr(_THREAD, "recording", False)


@contextmanager
def recording() -> Generator[None]:
    """Make `iterate` record one step between two marks while the context is open."""
    _THREAD.recording = True
    try:
        yield
    finally:
        _THREAD.recording = False


def _same(tensor: Tensor, other: Tensor) -> bool:
    return bool(((tensor == other) | (tensor.isnan() & other.isnan())).all())


@torch.library.custom_op("graft::loop_begin", mutates_args=())
def _marked_begin(state: list[Tensor], steps: int) -> list[Tensor]:
    return [tensor.clone() for tensor in state]


@torch.library.custom_op("graft::loop_end", mutates_args=())
def _marked_end(state: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in state]
