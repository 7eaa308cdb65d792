"""Settings of a process that trains on a CPU."""

from __future__ import annotations

import ctypes
import sys

import torch

from workers.numerics.tracing import load_tracer

_GLIBC_TRIM, _GLIBC_TOP_PAD, _GLIBC_MMAP = -1, -2, -3
_KEPT_BYTES = 1 << 30


def prepare() -> None:
    """One thread per worker, and memory that is freed stays with the process.

    Operations on tiny models are too short to be split, and threads that wait for one another at each of them stall on
    a busy machine, at worst twentyfold. And glibc gives blocks of a megabyte back to the kernel at once and asks for
    them anew at the next operation, which costs a quarter of a step (BENCHMARKS.md).
    """
    torch.set_num_threads(1)
    load_tracer()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (_GLIBC_TRIM, _GLIBC_MMAP):
            libc.mallopt(option, _KEPT_BYTES)
        libc.mallopt(_GLIBC_TOP_PAD, 1 << 26)
