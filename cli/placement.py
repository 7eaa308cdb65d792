"""Where a study runs: `--executor`, `--workers`, `--ray-address`, `--device`, `--pack`, decided and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec

from spaces.errors import StudyError

EXECUTORS = ("auto", "inline", "ray")


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where a study runs."""

    executor: str
    workers: int | None
    """None: one per GPU, or one per core where there is none."""
    ray_address: str | None
    device: str | None
    width: int | None
    """Most lanes of a pack. None: found while it trains."""

    def resolved(self) -> Placement:
        """`auto` decided, and everything checked; raises StudyError naming the value and the choices.

        `auto` is ray with an address or several GPUs, if Ray is installed, else inline.
        """
        from workers.pool import devices

        if self.executor not in EXECUTORS:
            raise StudyError(f"--executor: {self.executor!r} must be one of {', '.join(EXECUTORS)}")
        several_gpus = devices.gpus() > 1 and self.device is None and find_spec("ray") is not None
        many = self.ray_address is not None or several_gpus
        executor = ("ray" if many else "inline") if self.executor == "auto" else self.executor
        if executor == "inline" and self.ray_address:
            raise StudyError(f"--ray-address: {self.ray_address!r} needs --executor ray, or auto")
        if executor == "ray" and self.device is not None:
            raise StudyError(f"--device: {self.device!r} needs --executor inline; with ray, Ray places the workers")
        device = self.device or devices.default_device()
        check_device(device)
        return replace(self, executor=executor, device=device)


def check_device(device: str) -> None:
    """Raise StudyError unless torch can use the device here."""
    from workers.pool import devices

    if not devices.known(device):
        raise StudyError(f"--device: {device!r} is not on this machine; use cpu, or cuda where there is a GPU")
