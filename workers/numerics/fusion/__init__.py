"""Neighbouring operations of a recording, fused into generated kernels on a GPU.

Operations between large products (sums, softmax, dropout, norms, casts) would start a kernel each.
`partition` decides which ones become one kernel, `operations` has the C++ of each, `kernels` plans
storage and order, and `fusions` runs them.
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
    """Return fewer operations for `results`; kernels' blocks share out first axes of `lanes`."""
    if lanes < 1:
        return [*operations]
    fused: list[Operation] = []
    made: list[Fusion] = []
    for step in Partition(operations, kinds, lanes).part(results):
        if not isinstance(step, Part):
            fused.append(step)
            continue
        try:
            made.append(Fusion(step, dict(kinds), lanes))
            fused.append(made[-1].as_operation())
        except CannotGenerate:
            fused += step.operations
    if device.type == "cuda":
        compile_all(made, device)
    return fused
