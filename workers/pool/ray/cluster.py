"""Which Ray cluster is meant, in plain values. Imports no ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where to run: an existing cluster's address, or this machine when None; and on how much of it."""

    address: str | None
    workers: int | None
    """None: one worker per GPU of the cluster, or per core where there is none, also on nodes that join later."""
    shared: bool
    """Whether several studies use its devices, each with a worker on each, as in a service; else Tune places the
    workers of one.
    """
    packages: Sequence[str]
    """Graft's own packages, which each node gets as they are here."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What Ray prepares on each node before our code runs there: its `pip`, `uv`, `conda`, `env_vars`."""
