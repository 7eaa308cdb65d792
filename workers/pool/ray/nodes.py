"""The machines of a cluster, which come and go."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

import ray

from spaces.errors import StudyError

NODES_SECONDS = 2.0
"""How old what is known of the cluster's nodes may be."""


@final
class Nodes:
    """The cluster's living nodes: id -> resources."""

    def __init__(self) -> None:
        self._read: tuple[float, dict[str, dict[str, float]]] = (float("-inf"), {})

    def now(self) -> Mapping[str, Mapping[str, float]]:
        """Return the live nodes with their resources, as Ray knows them."""
        alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        self._read = time.monotonic(), alive
        return alive

    def recent(self) -> Mapping[str, Mapping[str, float]]:
        """Return the live nodes as they were at most `NODES_SECONDS` ago."""
        when, alive = self._read
        return alive if time.monotonic() < when + NODES_SECONDS else self.now()

    def devices(self) -> Mapping[str, float]:
        """GPUs and cores of all together; StudyError when there is neither."""
        total = {name: sum(node.get(name, 0) for node in self.now().values()) for name in ("GPU", "CPU")}
        if not any(total.values()):
            raise StudyError("the Ray cluster has neither GPUs nor cores yet; launch when a node with some has joined")
        return total
