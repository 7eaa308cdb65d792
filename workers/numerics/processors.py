"""Descriptions of processors, as far as arithmetic depends on them."""

from __future__ import annotations

import platform
from functools import cache

import torch

from workers.numerics.native.building import read_cpuinfo


def instruction_set(device: torch.device) -> str:
    """Return the vector instructions of a CPU, or the compute capability of a GPU."""
    if device.type != "cuda":
        return torch.backends.cpu.get_cpu_capability()
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda {major}.{minor}"


@cache
def describe_processor(kind: str, index: int = 0) -> str:
    """Return a device's instruction set and name: `AVX2, AMD EPYC`, `cuda 9.0, NVIDIA H200`."""
    device = torch.device(kind, index)
    if kind == "cuda":
        return f"{instruction_set(device)}, {torch.cuda.get_device_name(device)}"
    # By name, too: libraries choose their kernels by vendor and generation.
    models = (line.partition(":")[2].strip() for line in read_cpuinfo() if line.startswith("model name"))
    name = next(models, "") or platform.processor() or platform.machine()
    return f"{instruction_set(device)}, {name}"
