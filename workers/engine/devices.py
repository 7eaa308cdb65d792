"""Which devices there are, and how many lanes a pack gets on each while nothing is measured."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

WIDTHS = {"cpu": 32, "cuda": 1024}
"""Lanes of a pack until its own width is found: what one core's cache holds; a thousand on a GPU."""


def default_device() -> str:
    """`cuda` where there is a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def gpus() -> int:
    """GPUs of this machine."""
    return torch.cuda.device_count()


def default_width(device: str) -> int:
    """Lanes of a pack on a device such as `cpu` or `cuda:1`."""
    return WIDTHS[device.partition(":")[0]]


def device_name(device: str) -> str:
    """What kind of device it is, in its maker's words; of a CPU with the cores that this process may use."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {default_workers(device)} cores"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def default_workers(device: str) -> int:
    """Workers on a device of this machine: one per core that this process may use; one for a GPU."""
    if device.partition(":")[0] != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_usable(device: str) -> bool:
    """Whether torch can use the device on this machine."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return device.partition(":")[0] in WIDTHS
