"""Where the arrays of a block of threads lie: in the multiprocessor's shared memory, or in the GPU's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

THREADS = 256
_ALIGNMENT = 4
"""Floats: an array of words starts at a multiple of theirs."""


class Limits(NamedTuple):
    """Shared memory of a GPU in bytes: of a multiprocessor, of a block at most, and what each block takes beside."""

    multiprocessor: int
    block: int
    reserved: int = 1024

    def blocks_at_once(self, shared_bytes: int) -> int:
        """Return how many blocks, one or two, with so much shared memory a multiprocessor holds."""
        return 2 if shared_bytes <= self.multiprocessor // 2 - self.reserved else 1


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Where a block's arrays lie."""

    sequences: int
    """Worked on at once."""
    weights_in_shared: bool
    """Whether what a lane's weights take is in shared memory too, or in the GPU's own."""
    places: tuple[int, ...]
    """Where each array starts, in floats, in the order of the kernel's plan."""
    shared_bytes: int
    scratch_floats: int
    """Numbers of float32 that a block has in the GPU's global memory."""


def aligned(floats: int) -> int:
    """Floats that an array takes."""
    return -(-floats // _ALIGNMENT) * _ALIGNMENT


def odd(count: int) -> int:
    """Return the length of a row: threads that read a row each then read different banks of shared memory."""
    return count | 1
