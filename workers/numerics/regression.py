"""Prompts of linear regression in C++ (workers/numerics/native/normals.cpp).

Legend: L lanes, N prompts, s positions, d inputs of a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from workers.numerics.native import address, library
from workers.numerics.randomness import Streams


def draw_prompts(
    streams: Streams, moments_of: Callable[[], Tensor], batch: int, length: int
) -> tuple[Tensor, Tensor] | None:
    """Return prompts [L, N, s, d + 1] float32, the last label 0, and that label [L, N] float64.

    `moments_of()` [L or 1, 4, d + 1]: means and deviations of a prompt's weights, then of inputs
    and noise. None without native steps or on another device. The numbers are those of
    `Streams.normal`, d for the weights and then s rows; labels sum inputs in order, then noise.
    """
    native = library("normals") if streams.state.device.type == "cpu" else None
    if not native:
        return None
    lanes = streams.lanes
    moments = moments_of().expand(lanes, -1, -1).contiguous()
    width = moments.shape[-1]
    inputs = torch.empty(lanes, batch, length, width)
    targets = torch.empty(lanes, batch, dtype=torch.float64)
    tensors = streams.state.contiguous(), moments, inputs, targets
    sizes = ctypes.c_int(lanes), ctypes.c_int64(batch), ctypes.c_int(length), ctypes.c_int(width - 1)
    if native.regression_prompts(*sizes, *map(address, tensors)):
        raise MemoryError("the native prompts")
    return inputs, targets
