"""The slots of a service: a placement group for each device, or for a share of one."""

from __future__ import annotations

import itertools
import time
from typing import Any, final

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workers.pool.ray.cluster_slots import ClusterSlots
from workers.pool.ray.placed_worker import PlacedWorker

PARTS = 100
"""Workers that a slot has room for: one of each study, all with small parts."""
FIRST_SECONDS = 10.0
"""Most seconds that the first slots may take before those that are there are used."""


@final
class DeviceSlots(ClusterSlots):
    """Reserved slots of the cluster, each with a worker of every study of a service.

    A group pins workers to one device; Ray would place fractions of a GPU on any of a node's.
    """

    def __init__(self, workers: int | None) -> None:
        super().__init__(workers)
        self._groups: dict[int, PlacementGroup] = {}
        self._placed: dict[int, str] = {}
        """Slot -> the id of its node."""
        deadline = time.monotonic() + FIRST_SECONDS
        while len(self.update()) < len(self._groups) and time.monotonic() < deadline:
            time.sleep(0.1)

    def update(self) -> tuple[int, ...]:
        """Reserve devices that have joined, forget those that have left; return usable slots."""
        wanted, table = self.count(), placement_group_table()
        for slot, group in [*self._groups.items()]:
            row: dict[str, Any] = table.get(group.id.hex(), {})
            if row.get("state") == "CREATED":
                self._placed[slot] = row["bundles_to_node_id"][0]
            elif slot in self._placed or len(self._groups) > wanted:
                # Ray would place it anew, and ask an autoscaler for a node.
                remove_placement_group(group)
                self._placed.pop(slot, None)
                del self._groups[slot]
        while len(self._groups) < wanted:
            slot = next(number for number in itertools.count() if number not in self._groups)
            self._groups[slot] = placement_group([{**self.reservation}])
        return tuple(sorted(self._placed))

    async def start(self, slot: int) -> tuple[Any, str]:
        node = self._placed[slot]
        remote: Any = ray.remote
        return remote(**self.options(slot))(PlacedWorker).remote(), node

    def stop(self, slot: int, actor: Any, reason: str | None) -> None:
        if actor is not None:
            ray.kill(actor)

    def options(self, slot: int) -> dict[str, Any]:
        """Return Ray's options for an actor in a slot."""
        [(resource, reserved)] = self.reservation.items()
        amount = max(int(reserved / PARTS * 10_000), 1) / 10_000  # Ray counts in ten thousandths
        amounts = {"num_cpus": 0.0, "num_gpus": 0.0, f"num_{resource.lower()}s": amount}
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._groups[slot],
            placement_group_bundle_index=0,
            placement_group_capture_child_tasks=False,
        )
        return {**amounts, "scheduling_strategy": strategy}
