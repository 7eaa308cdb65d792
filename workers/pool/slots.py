"""Slots: each is a device, or a share of one, that has one worker of a study at a time."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping

Reservation = Mapping[str, float]
"""What one worker reserves: Ray's name of one resource -> at most one of it."""

MOST_CRASHES = 4
"""After so many worker crashes in a row, with nothing reported in between, a slot is abandoned."""


def name_worker(pool: str, slot: int) -> str:
    """Return a name for the next worker of a slot; never used again, so that a late call of an old worker is
    recognised.
    """
    return f"{pool}-{slot}-{uuid.uuid4().hex[:8]}"


def slot_of(worker: str) -> int:
    """Return the slot of a worker that `name_worker` named."""
    return int(worker.split("-")[1])


def reservation_of(resources: Mapping[str, float], workers: int | None) -> Reservation:
    """Return the resources that each of so many workers reserves on a cluster with these; None workers get a whole
    device each.

    Of GPUs where there are any, and then nothing else: nodes may have many GPUs and few cores. Else of cores.
    """
    name = "GPU" if resources.get("GPU") else "CPU"
    return {name: fraction(resources.get(name, 0), workers or 1)}


def fraction(devices: float, workers: int) -> float:
    """Devices per worker: a whole one where there are enough, else a fraction of one, as many workers on each."""
    if devices >= workers or not devices:
        return 1.0
    return int(1000 / math.ceil(workers / devices)) / 1000


def room_on(nodes: Iterable[Mapping[str, float]], reservation: Reservation) -> int:
    """Workers that fit on nodes with these resources, each on one device and none across two."""
    [(name, amount)] = reservation.items()
    return sum(int(node.get(name, 0)) for node in nodes) * int(1 / amount)
