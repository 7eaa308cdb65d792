"""Memory for large tensors that is used again: the system clears each page that it gives, at 10 GB/s or so.

A step makes parameters and gradients anew. Where they are a gigabyte, pages that are given back and asked for again
cost a third of the step. A block is used again once no tensor refers to it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST = 1 << 25
"""Bytes; smaller pieces the C library keeps itself."""
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
        """Return a contiguous tensor of the same shape and type, whose numbers are anything."""
        if tensor.nbytes < LEAST or tensor.device.type != "cpu":
            return torch.empty_like(tensor, memory_format=torch.contiguous_format)
        block = self._take(tensor.nbytes + _LINE)
        start = -block.ctypes.data % _LINE
        inside = torch.from_numpy(block[start : start + tensor.nbytes])  # refers to the block
        return inside.view(tensor.dtype).view(tensor.shape)

    def _take(self, size: int) -> _Block:
        """Return a block of this many bytes that no tensor refers to."""
        free = [number for number in range(len(self._blocks)) if _holders(self._blocks, number) == _FREE]
        for number in free:
            if self._blocks[number].nbytes == size:
                return self._blocks[number]
        for number in reversed(free):  # these are blocks of a pack of another width
            del self._blocks[number]
        self._blocks.append(np.empty(size, dtype=np.uint8))
        return self._blocks[-1]
