"""The slots of a Ray cluster, in which a launch or a service starts workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import ray

from spaces.errors import StudyError
from workers.pool.slots import reservation_of, room_on, sharing_of


class ClusterSlots(ABC):
    """The slots, by number: one per device or share of one, while nodes join and leave."""

    def __init__(self, workers: int | None) -> None:
        """Share devices among workers by `reservation_of`; StudyError if there are none."""
        total = {name: sum(node.get(name, 0) for node in _live_nodes().values()) for name in ("GPU", "CPU")}
        if not any(total.values()):
            raise StudyError("the Ray cluster has neither GPUs nor cores yet; launch when a node with some has joined")
        self.reservation = reservation_of(total, workers)
        self._workers = workers

    @property
    def device(self) -> str:
        """The kind of device of the slots: `cuda` or `cpu`."""
        return "cuda" if "GPU" in self.reservation else "cpu"

    @property
    def sharing(self) -> int:
        """Workers of a study that share a GPU, or a core."""
        return sharing_of(self.reservation)

    def count(self) -> int:
        """Return the number of slots that there should be now."""
        room = room_on(_live_nodes().values(), self.reservation)
        return room if self._workers is None else min(self._workers, room)

    def has_left(self, node: str) -> bool:
        """Return True if a node is gone."""
        return node not in _live_nodes()

    @abstractmethod
    def update(self) -> tuple[int, ...]:
        """Return the slots that can be used now; raises an error that ended the placing."""

    @abstractmethod
    async def start(self, slot: int) -> tuple[Any, str]:
        """Start a worker in a slot, and return its actor and its node's id, or raise."""

    @abstractmethod
    def stop(self, slot: int, actor: Any, reason: str | None) -> None:
        """End a slot's worker; without `actor` none was started, without `reason` it was done."""


def _live_nodes() -> Mapping[str, Mapping[str, float]]:
    """Return the resources of each live node, by its id."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
