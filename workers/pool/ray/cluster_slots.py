"""The slots of a Ray cluster, in which workers are started: what a launch and a service have in common of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import ray

from spaces.errors import StudyError
from workers.pool.slots import reservation_of, room_on


class ClusterSlots(ABC):
    """The slots, by number: one for each device of the cluster or share of one, while nodes join and leave."""

    def __init__(self, workers: int | None) -> None:
        """Share devices among so many workers by `reservation_of`; StudyError if there are none."""
        total = {name: sum(node.get(name, 0) for node in _live_nodes().values()) for name in ("GPU", "CPU")}
        if not any(total.values()):
            raise StudyError("the Ray cluster has neither GPUs nor cores yet; launch when a node with some has joined")
        self.reservation = reservation_of(total, workers)
        self._workers = workers

    @property
    def device(self) -> str:
        """The kind of device of the slots: `cuda` or `cpu`."""
        return "cuda" if "GPU" in self.reservation else "cpu"

    def count(self) -> int:
        """Return how many slots there should be now."""
        room = room_on(_live_nodes().values(), self.reservation)
        return room if self._workers is None else min(self._workers, room)

    def has_left(self, node: str) -> bool:
        """Return whether a node is not there any more."""
        return node not in _live_nodes()

    @abstractmethod
    def update(self) -> tuple[int, ...]:
        """Return the slots that can be used now; raises what ended the placing of workers."""

    @abstractmethod
    async def start(self, slot: int) -> tuple[Any, str]:
        """Start a worker in a slot, and return its actor and the id of its node; raises what it crashed with."""

    @abstractmethod
    def stop(self, slot: int, actor: Any, reason: str | None) -> None:
        """End a slot's worker: its actor is None if it was not started, `reason` is None if it was done."""


def _live_nodes() -> Mapping[str, Mapping[str, float]]:
    """Return the resources of each live node, by its id."""
    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
