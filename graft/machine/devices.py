"""Which device of this machine a person may name, and which stands in for another machine's."""

from __future__ import annotations

from spaces.errors import StudyError

ESTIMATED = ("a100", "h100", "h200", "4090")
"""GPUs of which `--dry-run` estimates the rate, wherever it runs."""


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
    """Return a warning, with the cure, that this machine has an NVIDIA card which torch cannot use."""
    from workers.engine.machine import devices

    unused = devices.describe_unused_gpu()
    return f"training on the CPU: {unused}" if unused else None


def similar_device(kind: str | None) -> str:
    """Return the device of this machine most like one of this kind; None: this machine's default."""
    from workers.engine.machine import devices

    wanted = kind or devices.default_device()
    return wanted if devices.is_usable(wanted) else "cpu"
