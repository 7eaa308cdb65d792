"""Operations fused as the kernels that are written for them, on a CPU: the same source, blocks and threads in turn.

While `emulated_fusion` is entered, recordings of tensors of the CPU are fused as a GPU's are.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from tests.support import emulated_kernels
from tests.support.compiled import compiled
from workers.numerics.fusion.fusions import Fusion

FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-DGRAFT_EMULATED")


@functools.cache
def library(text: str) -> ctypes.CDLL:
    """Return a kernel, compiled once on a machine."""
    return compiled(text, FLAGS)


def launch(fusion: Fusion, given: Sequence[Tensor], *, backwards: bool = False) -> list[Tensor]:
    """Return a fusion's results by its kernel; memory that nobody has written holds no numbers."""
    made = fusion.make_results(torch.device("cpu"))
    scratch = [torch.empty(kind.numel, dtype=kind.dtype) for kind in fusion.program.scratch]
    for tensor in (*made, *scratch):
        tensor.fill_(torch.nan if tensor.dtype.is_floating_point else 77)
    kernel = library(fusion.program.text)
    kernel.order(int(backwards))
    kernel.fused(
        fusion.program.blocks,
        *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (*fusion.chosen(given), *made, *scratch)),
    )
    return made


@contextmanager
def emulated_fusion(act: Callable[[Fusion, Sequence[Tensor]], list[Tensor]] = launch) -> Iterator[list[Fusion]]:
    """Fuse recordings of the CPU and let `act` run their fusions; yields a list that gets each fusion that has run."""
    ran: list[Fusion] = []

    def run(fusion: Fusion, given: Sequence[Tensor]) -> list[Tensor]:
        assert fusion.fits(given), "a kernel is written for tensors that lie in memory as these do"
        ran.append(fusion)
        return act(fusion, given)

    fuses = patch("workers.numerics.tape.fuses_on", lambda device: True)
    with fuses, patch.object(emulated_kernels, "RUN_FUSION", [run]), patch("workers.numerics.tracing._RECORDINGS", {}):
        yield ran
