"""Which device of this machine a person may name, and which stands in for another machine's."""

from __future__ import annotations

from spaces.errors import StudyError


def check_device(device: str) -> None:
    """Raise StudyError unless torch can use the device here."""
    from workers.engine import devices

    if not devices.is_usable(device):
        raise StudyError(f"--device: {device!r} is not on this machine; use cpu, or cuda where there is a GPU")


def similar_device(kind: str | None) -> str:
    """The device of this machine most like one of this kind; None: this machine's default."""
    from workers.engine import devices

    wanted = kind or devices.default_device()
    return wanted if devices.is_usable(wanted) else "cpu"
