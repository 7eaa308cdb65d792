"""Slots: devices, or shares of one, each with one worker of a study at a time."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping

from spaces.errors import StudyError

Reservation = Mapping[str, float]
"""The reservation of a worker: Ray's name of one resource -> at most one of it."""

MOST_CRASHES = 4
"""A slot is abandoned after so many consecutive worker crashes without a report."""

MOST_SHARING = 1000
"""Most workers that share a device: each reserves whole thousandths of it."""


def name_worker(pool: str, slot: int) -> str:
    """Return a new name for a slot's next worker, so that late calls of an old one show."""
    return f"{pool}-{slot}-{uuid.uuid4().hex[:8]}"


def slot_of(worker: str) -> int:
    """Return the slot of a worker that `name_worker` named."""
    return int(worker.split("-")[1])


def reservation_of(resources: Mapping[str, float], workers: int | None) -> Reservation:
    """Return the resources that each worker reserves; without `workers` a whole device.

    Only GPUs if there are any, as nodes may have many GPUs and few cores; else cores. StudyError for
    more than MOST_SHARING workers on each.
    """
    name = "GPU" if resources.get("GPU") else "CPU"
    return {name: fraction(resources.get(name, 0), workers or 1)}


def fraction(devices: float, workers: int) -> float:
    """Return the devices per worker: one, or a fraction with as many workers on each."""
    if devices >= workers or not devices:
        return 1.0
    if workers > MOST_SHARING * devices:
        most = f"at most {int(MOST_SHARING * devices)} on this cluster"
        raise StudyError(f"--workers: {workers} must be {most}, {MOST_SHARING} for each GPU, or core without GPUs")
    return int(MOST_SHARING / math.ceil(workers / devices)) / MOST_SHARING


def sharing_of(reservation: Reservation) -> int:
    """Return how many workers share a device."""
    [amount] = reservation.values()
    return int(1 / amount)


def room_on(nodes: Iterable[Mapping[str, float]], reservation: Reservation) -> int:
    """Return how many workers fit on nodes with these resources, none across two devices."""
    [name] = reservation
    return sum(int(node.get(name, 0)) for node in nodes) * sharing_of(reservation)
