"""The description of a Ray cluster, in plain values. Imports no ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster's address, or None for this machine, and the part that is used."""

    address: str | None
    workers: int | None
    """None: one per GPU, or per core if there is none, also on nodes that join later."""
    shared: bool
    """True if several studies use each device, as in a service; else Tune places one's workers."""
    packages: Sequence[str]
    """Graft's own packages, which each node gets from here."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Ray's preparations on each node: its `pip`, `uv`, `conda`, `env_vars`."""
