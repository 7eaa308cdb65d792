"""NVIDIA cards as their driver shows them, without CUDA, and why torch cannot use them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc/driver/nvidia")
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA -> its first driver on Linux. Source: NVIDIA, "CUDA Compatibility", minor versions."""
_VERSION = re.compile(r"Kernel Module.*?\s(\d{3,}\.[\d.]+)")
_WHERE = "https://pytorch.org/get-started/locally"


class Driver(NamedTuple):
    """A driver of NVIDIA's and the cards that it drives."""

    version: str
    """`580.65.06`; empty if unknown."""
    cards: tuple[str, ...]
    """The model of each card."""

    def __str__(self) -> str:
        counts = Counter(self.cards)
        counted = [f"{count} x {model}" if count > 1 else model for model, count in counts.items()]
        return f"{', '.join(counted)}, driver {self.version or 'of unknown version'}"


class TorchBuild(NamedTuple):
    """The parts of torch's build that decide which cards it can use."""

    version: str
    cuda: str | None
    """The CUDA that it was built for, `13.0`, or None."""
    error: str
    """Torch's error when asked to compute on a card; empty if it sees none."""


def find_driver(proc: Path = PROC) -> Driver | None:
    """Return driver and cards, by /proc or, as on Windows' Linux, nvidia-smi; None without any."""
    cards: list[str] = []
    for file in sorted(proc.glob("gpus/*/information")):
        with suppress(OSError):
            lines = (line.partition(":") for line in file.read_text().splitlines())
            cards += [text.strip() for name, _, text in lines if name.strip() == "Model"]
    if not cards:
        listed = run_nvidia_smi("--query-gpu=driver_version,name", "--format=csv,noheader")
        rows = [line.split(", ", 1) for line in listed.splitlines() if ", " in line]
        return Driver(rows[0][0], tuple(name for _, name in rows)) if rows else None
    with suppress(OSError):
        if match := _VERSION.search((proc / "version").read_text()):
            return Driver(match[1], tuple(cards))
    return Driver("", tuple(cards))


def run_nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints; empty if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def is_hidden(environment: Mapping[str, str] = os.environ) -> bool:
    """Return True if the user hides all cards from CUDA, by CUDA_VISIBLE_DEVICES."""
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    return listed is not None and listed.split(",")[0].strip() in ("", "-1", "NoDevFiles")


def explain_obstacle(driver: Driver, torch: TorchBuild) -> str:
    """Return in a line why this torch cannot use these cards, with the cure."""
    if torch.cuda is None:
        return (
            f"{driver} is here, but torch {torch.version} is built without CUDA; install a build with it, "
            f"which {_WHERE} names (CUDA 13 needs driver 580 or newer, CUDA 12 driver 525)"
        )
    major = int(torch.cuda.partition(".")[0])
    least, here = LEAST_DRIVER.get(major), int(driver.version.partition(".")[0] or 0)
    if least and 0 < here < least:
        return (
            f"{driver} is here, but torch {torch.version} is built for CUDA {torch.cuda}, which needs driver {least} "
            f"or newer; update the driver, or install a torch for an older CUDA, which {_WHERE} names"
        )
    said = f": {torch.error}" if torch.error else ", which does not see it; a container needs `--gpus all`"
    return f"{driver} is here, but torch {torch.version} (CUDA {torch.cuda}) cannot compute on it{said}"
