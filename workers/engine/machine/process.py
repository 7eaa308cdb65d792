"""Settings of a process, and of a thread, that trains."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

import torch

from workers.engine.machine.side_by_side import use_stream
from workers.numerics.tracing import load_tracer

_GLIBC_TRIM, _GLIBC_TOP_PAD, _GLIBC_MMAP = -1, -2, -3
_KEPT_BYTES = 1 << 30


def prepare() -> None:
    """Set one thread per worker, and let freed memory stay with the process.

    Operations on tiny models are too short to be split, and threads that wait for one another at
    each of them stall on a busy machine, at worst twentyfold. And glibc gives blocks of a megabyte
    back to the kernel at once and asks for them again, which costs a quarter of a step
    (BENCHMARKS.md).

    On a GPU float32 products are of float32 numbers, not of TF32's ten bits, and cuBLAS has
    workspaces for each stream, or its sums could change their order (NVIDIA, "cuBLAS", Results
    Reproducibility).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # pyright: ignore[reportAttributeAccessIssue]
    torch.set_num_threads(1)
    load_tracer()
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (_GLIBC_TRIM, _GLIBC_MMAP):
            libc.mallopt(option, _KEPT_BYTES)
        libc.mallopt(_GLIBC_TOP_PAD, 1 << 26)


def use_device(device: torch.device, slot: int | None = None) -> None:
    """Make this GPU the default device of this thread.

    From then on it computes on the stream of a worker's slot, or, for None, on its own, at first
    that of slot 0. So nothing uses CUDA's default stream, on which no graph can be captured.
    """
    if device.type == "cuda":
        if str(device) == "cuda":  # set_device wants a number
            device = torch.device("cuda", torch.cuda.current_device())
        torch.cuda.set_device(device)
        if slot is not None or torch.cuda.current_stream(device) == torch.cuda.default_stream(device):
            use_stream(device, slot or 0)


@contextmanager
def flush_subnormals() -> Generator[None]:
    """Treat numbers below the smallest normal one as zero in this thread for a while.

    Each of them costs a hundred cycles, and the moment of a gradient that is zero stays subnormal
    for ever. A pack trains and evaluates so whatever its thread and step, since bits depend on it:
    a replay, which has a thread of its own, then gives the same numbers.
    """
    before = math.ulp(0.0) == 0.0  # the smallest subnormal number of all
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
