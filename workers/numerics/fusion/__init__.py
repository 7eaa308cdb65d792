"""Neighbouring operations of a recording, fused into generated kernels on a GPU.

Each operation between two large products (sums, softmax, dropout, norms, casts) would start a
kernel, which reads and writes memory. Those that may run together become one: `partition` decides
which, `operations` has each one's C++, `kernels` plans storage and order, and `fusions` runs them.
On a CPU nothing is fused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workers.numerics.codegen.values import CannotGenerate, Kind
from workers.numerics.fusion.fusions import Fusion, compile_all
from workers.numerics.fusion.partition import Part, Partition
from workers.numerics.simplifying import Operation, Slot


def fuses_on(device: torch.device) -> bool:
    """Return whether operations are fused on this device."""
    # Tensors of the device `meta` have no numbers: they stand for a GPU's, to count a step's cost.
    return device.type in ("cuda", "meta")


def fuse(
    operations: Sequence[Operation],
    results: Sequence[Any],
    kinds: Mapping[Slot, Kind],
    device: torch.device,
    lanes: int,
) -> list[Operation]:
    """Return operations in fewer kernels that compute `results`, equal up to rounding.

    `lanes`: the length of first axes that a kernel's blocks may share out among them.
    """
    if lanes < 1:
        return [*operations]
    fused: list[Operation] = []
    made: list[Fusion] = []
    for one in Partition(operations, kinds, lanes).part(results):
        if not isinstance(one, Part):
            fused.append(one)
            continue
        try:
            made.append(Fusion(one, dict(kinds), lanes))
            fused.append(made[-1].as_operation())
        except CannotGenerate:
            fused += one.operations
    if device.type == "cuda":
        compile_all(made, device)
    return fused
