"""Devices of a cluster that are reserved for a service: a placement group for each, or for a part of one."""

from __future__ import annotations

import itertools
import time
from typing import Any, final

from ray.util import placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workers.pool.ray.nodes import Nodes
from workers.pool.slots import room_on, share_of

PARTS = 100
"""Workers that a slot has room for: one of each study, each with so small a part that all find a place."""
FIRST_SECONDS = 10.0
"""How long the first slots may take to be reserved before those that are there are used."""


@final
class DeviceSlots:
    """The slots, by number: each a device that nobody else of the cluster gets, on which all studies have a worker.

    A group pins its workers to one device, where Ray would place fractions of a GPU on any of a node's.
    """

    def __init__(self, workers: int | None) -> None:
        """Share the devices that are there now among so many workers, as `share_of` does; StudyError if there is
        none.
        """
        self._nodes = Nodes()
        self._most = workers
        [(self._resource, self._amount)] = share_of(self._nodes.devices(), workers).items()
        self._groups: dict[int, PlacementGroup] = {}
        self._placed: dict[int, str] = {}
        """Slot -> the id of its node."""

    @property
    def device(self) -> str:
        """The kind of device of the slots: `cuda` or `cpu`."""
        return "cuda" if self._resource == "GPU" else "cpu"

    def reserve_first(self) -> tuple[int, ...]:
        """Return the slots that are reserved within seconds."""
        deadline = time.monotonic() + FIRST_SECONDS
        while len(slots := self.update()) < len(self._groups) and time.monotonic() < deadline:
            time.sleep(0.1)
        return slots

    def update(self) -> tuple[int, ...]:
        """Reserve devices that have joined, and forget those that have left; the slots that can be used."""
        room = room_on(self._nodes.now().values(), {self._resource: self._amount})
        wanted = room if self._most is None else min(self._most, room)
        table = placement_group_table()
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
            self._groups[slot] = placement_group([{self._resource: self._amount}])
        return tuple(sorted(self._placed))

    def options(self, slot: int) -> dict[str, Any]:
        """Return Ray's options for an actor in a slot."""
        amount = int(self._amount / PARTS * 10_000) / 10_000  # Ray counts in ten thousandths
        amounts = {"num_cpus": 0.0, "num_gpus": 0.0, f"num_{self._resource.lower()}s": amount}
        place = PlacementGroupSchedulingStrategy(
            placement_group=self._groups[slot],
            placement_group_bundle_index=0,
            placement_group_capture_child_tasks=False,
        )
        return {**amounts, "scheduling_strategy": place}

    def has_left(self, node: str | None) -> bool:
        """Return whether a node is not there any more."""
        return node is not None and node not in self._nodes.now()

    def node_of(self, slot: int) -> str | None:
        """Return the id of a slot's node."""
        return self._placed.get(slot)
