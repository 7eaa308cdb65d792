"""Connects this process to a Ray cluster, or starts one on this machine."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
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
"""The seconds for which Ray may try where something listens; Ray reads them from a variable."""
SWIFT = "swift"
"""The concurrency group of calls of an actor that never wait for an exchange."""


def connect(cluster: Cluster) -> None:
    """Attach to a cluster, or start one here; raises StudyError, one line, for one that cannot be used."""
    # Tune's tables and Ray's worker logs are for its own users; ours are told by the display.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "200")  # as for Tune's own searchers; one at a time else
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    check_access(cluster.address)
    environment = _environment(cluster)
    ours = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place of it, which ends this process
    try:
        if cluster.address is None:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # Ray would write one to a file that others can read
            # "local": without it Ray looks for a cluster that was started here once, and waits for it for minutes.
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            _knock(cluster.address)
            os.environ.setdefault("RAY_gcs_server_port_wait_time_s", CONNECT_SECONDS)
            with _hush():
                ray.init(address=cluster.address, runtime_env=environment, **quiet)
    except (OSError, OverflowError, ValueError, RuntimeError, RayError) as error:
        if AuthenticationError.__name__ in str(error.__cause__):
            raise StudyError(f"--ray-address: the cluster at {cluster.address} has another token") from None
        at = f"no Ray cluster answers at {cluster.address}" if cluster.address else "Ray does not start on this machine"
        raise StudyError(f"{at}: {last_line(error)}") from None
    finally:
        signal.signal(signal.SIGTERM, ours)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a worker's death is a traceback there, and mended here


def _environment(cluster: Cluster) -> RuntimeEnv:
    """Return the requested environment with our own packages as they are here: all nodes run what this one runs."""
    root = Path(__file__).parents[3]
    try:
        return RuntimeEnv(**cluster.environment, py_modules=[str(root / package) for package in cluster.packages])
    except (TypeError, ValueError) as error:
        raise StudyError(f"--ray-env: {last_line(error)}") from None


def _knock(address: str) -> None:
    """Raise OSError at once where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@contextmanager
def _hush() -> Generator[None]:
    """Discard what Ray's machinery prints past Python while it connects: its exceptions say it again."""
    sys.stderr.flush()
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def swift(method: Any) -> Any:
    """Return a method of an actor, called in a thread of its own kind."""
    return method.options(concurrency_group=SWIFT).remote
