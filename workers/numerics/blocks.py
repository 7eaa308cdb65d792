"""Memory for large tensors that is used again once no tensor refers to it.

The system clears each page that it gives, at about 10 GB/s: for the gigabyte of parameters and
gradients that a step makes anew, a third of the step.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST = 1 << 25
"""Bytes; the C library itself keeps smaller pieces."""
_LINE = 64
_Block = np.ndarray[Any, np.dtype[np.uint8]]


def _holders(blocks: list[_Block], number: int) -> int:
    return sys.getrefcount(blocks[number])


_FREE = _holders([np.empty(1, dtype=np.uint8)], 0)
"""The number of references to a block that no tensor refers to."""


class Blocks:
    """The blocks of one pack."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Return a contiguous tensor of the same shape and type with arbitrary numbers."""
        if tensor.nbytes < LEAST or tensor.device.type != "cpu":
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        size = tensor.nbytes + _LINE
        free = [n for n in range(len(self._blocks)) if _holders(self._blocks, n) == _FREE]
        block = next((self._blocks[n] for n in free if self._blocks[n].nbytes == size), None)
        if block is None:
            for n in reversed(free):  # these are blocks of a pack of another width
                del self._blocks[n]
            block = np.empty(size, dtype=np.uint8)
            self._blocks.append(block)
        start = -block.ctypes.data % _LINE
        inside = torch.from_numpy(block[start : start + tensor.nbytes])  # refers to the block
        return inside.view(tensor.dtype).view(tensor.shape)
