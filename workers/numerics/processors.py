"""What a processor's arithmetic depends on."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch


def instruction_set(device: torch.device) -> str:
    """Return what a device's arithmetic depends on: a CPU's vector instructions, a GPU's compute capability."""
    if device.type != "cuda":
        return torch.backends.cpu.get_cpu_capability()
    major, minor = torch.cuda.get_device_capability(device)
    return f"cuda {major}.{minor}"


@cache
def describe_processor(kind: str, index: int = 0) -> str:
    """Instruction set and name of a device, `cpu` or `cuda`: `AVX2, AMD EPYC`, `cuda 9.0, NVIDIA H200`."""
    device = torch.device(kind, index)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else _cpu_name()
    return f"{instruction_set(device)}, {name}"


def _cpu_name() -> str:
    """By name: libraries choose their kernels by vendor and generation, too."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
