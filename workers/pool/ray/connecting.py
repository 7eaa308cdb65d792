"""Connects this process to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RayError
from ray.runtime_env import RuntimeEnv

from spaces.errors import StudyError
from workers.pool.logs import last_line
from workers.pool.ray.access import check_access
from workers.pool.ray.cluster import Cluster

KNOCK_SECONDS = 10.0
CONNECT_SECONDS = "5"
"""Seconds for which Ray may try where something listens; Ray reads them from a variable."""


def connect(cluster: Cluster) -> None:
    """Attach to a cluster, or start one here; raises StudyError if it cannot be used."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    check_access(cluster.address)
    environment = _environment(cluster)
    try:
        if cluster.address is None:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray's own file could be read by others
            # "local": without it Ray waits for minutes for a cluster that was started here once.
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            host, _, port = cluster.address.rpartition(":")
            if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
            os.environ.setdefault("RAY_gcs_server_port_wait_time_s", CONNECT_SECONDS)
            ray.init(address=cluster.address, runtime_env=environment, **quiet)
    except (OSError, OverflowError, ValueError, RuntimeError, RayError) as error:
        if AuthenticationError.__name__ in str(error.__cause__):
            raise StudyError(f"--ray-address: the cluster at {cluster.address} has another token") from None
        at = f"no Ray cluster answers at {cluster.address}" if cluster.address else "Ray does not start on this machine"
        raise StudyError(f"{at}: {last_line(error)}") from None


def _environment(cluster: Cluster) -> RuntimeEnv:
    """Return the requested environment with our own packages, so that all nodes run this code."""
    root = Path(__file__).parents[3]
    try:
        return RuntimeEnv(**cluster.environment, py_modules=[str(root / package) for package in cluster.packages])
    except (TypeError, ValueError) as error:
        raise StudyError(f"--ray-env: {last_line(error)}") from None
