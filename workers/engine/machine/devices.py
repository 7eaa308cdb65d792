"""The machine's devices, and default widths of packs on each."""

from __future__ import annotations

import os
import platform
import warnings
from contextlib import suppress
from pathlib import Path

import torch

from spaces.messages import shorten
from workers.engine.machine.nvidia import TorchBuild, explain_obstacle, find_driver, is_hidden
from workers.engine.machine.side_by_side import PACKS

WIDTHS = {"cpu": 32, "cuda": 1024}
"""Lanes of a pack until its own width is found: those of one core's cache; a thousand on a GPU."""


def default_device() -> str:
    """Return `cuda` if there is a GPU that computes, else `cpu`."""
    return "cuda" if gpus() and is_usable("cuda") else "cpu"


def gpus() -> int:
    """Count the GPUs of this machine that torch sees."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver too old: `describe_unused_gpu` has one line
        # The count alone includes cards of no use.
        return torch.cuda.device_count() if torch.cuda.is_available() else 0


def describe_gpus() -> list[str]:
    """Return a line for each GPU that torch computes on; a MIG instance's name says so."""
    lines: list[str] = []
    for index in range(gpus()) if is_usable("cuda") else ():
        properties = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        lines.append(
            f"cuda:{index}: {properties.name}, compute capability {properties.major}.{properties.minor}, "
            f"{properties.multi_processor_count} multiprocessors, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        )
    return lines


def describe_torch() -> str:
    """Return the version of torch and of its CUDA."""
    return f"{torch.__version__}, built {f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"


def describe_unused_gpu() -> str | None:
    """Return why torch cannot use the machine's NVIDIA cards, and the cure; None if it can."""
    driver = None if is_hidden() else find_driver()
    error = _find_fault("cuda") if driver else None
    if driver is None or error is None:
        return None
    return explain_obstacle(driver, TorchBuild(torch.__version__, torch.version.cuda, error if gpus() else ""))


def default_width(device: str) -> int:
    """Return the lanes of a pack on a device such as `cpu` or `cuda:1`."""
    return WIDTHS[device.partition(":")[0]]


def device_name(device: str) -> str:
    """Return the device's name in its maker's words; a CPU's with the cores of this process."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if key.startswith("model name")), name)
    return f"{name}, {default_workers(device)} cores"


def default_workers(device: str) -> int:
    """Return the workers of a device: one per core that this process may use; one for a GPU."""
    if device.partition(":")[0] != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def inline_workers(device: str) -> int:
    """Return the workers of a device in one process: one per core, or several on a GPU."""
    return default_workers(device) if device.partition(":")[0] == "cpu" else PACKS


def is_usable(device: str) -> bool:
    """Return True if torch can compute on the device."""
    return device.partition(":")[0] in WIDTHS and _find_fault(device) is None


def _find_fault(device: str) -> str | None:
    """Return torch's error on a device, if any: it may see a card that it has no kernels for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as error:
        return shorten(str(error).partition("\n")[0], 200)
    return None
