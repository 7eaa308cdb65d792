"""Neighbouring operations of a recording as kernels of their own, generated for it, on a GPU.

A step's operations between two large products (sums, softmax, attention of few positions, dropout, norms, casts) start
a kernel each, which reads and writes memory; here those that may run together become one. `partition` says which,
`operations` what each is in C++, `kernels` what is stored and in which order, and `fusions` runs them.
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
    # Tensors of the device `meta` have shapes and no numbers: they stand for a GPU's, to count what a step costs there.
    return device.type in ("cuda", "meta")


def fuse(
    operations: Sequence[Operation],
    results: Sequence[Any],
    kinds: Mapping[Slot, Kind],
    device: torch.device,
    lanes: int,
) -> list[Operation]:
    """Operations that give the slots among `results` the same numbers, up to rounding, as fewer kernels.

    `lanes`: the length of first axes that blocks of a kernel may share out among them.
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
