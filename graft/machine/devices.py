"""The devices of this machine that `--device` may name, or that replace another machine's."""

from __future__ import annotations

from spaces.errors import StudyError

ESTIMATED = ("a100", "h100", "h200", "4090")
"""GPUs whose rate `--dry-run` estimates on any machine."""


def check_device(device: str) -> None:
    """Raise StudyError unless torch can compute on the device here."""
    from workers.engine.machine import devices

    if devices.is_usable(device):
        return
    if device in ESTIMATED:
        raise StudyError(f"--device: {device!r} is estimated by --dry-run alone, and is not trained on")
    kind = device.partition(":")[0]
    if kind == "cuda" and (unused := devices.describe_unused_gpu()):
        raise StudyError(f"--device: {device!r} cannot be used: {unused}")
    raise StudyError(f"--device: {device!r} is not on this machine; use cpu, or cuda where there is a GPU")


def describe_unused_gpu() -> str | None:
    """Return a warning, with its remedy, if torch cannot use this machine's NVIDIA card."""
    from workers.engine.machine import devices

    unused = devices.describe_unused_gpu()
    return f"training on the CPU: {unused}" if unused else None


def similar_device(kind: str | None) -> str:
    """Return the device of this machine most like one of this kind (None: the default device)."""
    from workers.engine.machine import devices

    wanted = kind or devices.default_device()
    return wanted if devices.is_usable(wanted) else "cpu"
