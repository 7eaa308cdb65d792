"""What befalls a study on a Ray cluster: a worker and a node that are killed, and a launch with a wrong token."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.databases import place_for_server, raw, running_server
from tests.support.launches import SPACE, Launched, ended, finished, metrics, running, search, wait_until
from tests.support.ray_clusters import Nodes, descendants, open_nodes

SIZES = ("--steps", "3000", "--set", "training.validate_every=600")
SECONDS = 600.0


@dataclass
class OnRay:
    """Faults that fired, and what came out of them that should not."""

    fired: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


def torment_on_ray(database: str) -> OnRay:
    """Launch on a cluster of three nodes, kill a worker and a node of it, and compare the metrics."""
    result = OnRay()
    with tempfile.TemporaryDirectory() as path, _database_of(database, path) as url, _cluster() as nodes:
        folder, address = Path(path), nodes.add(cpus=0)
        nodes.add(cpus=1)
        nodes.add(cpus=1)
        launch = ("launch", SPACE, *SIZES, "--ray-address", address, "--pack", "8", "--storage", url)
        with _token(uuid.uuid4().hex), running(folder, *launch) as refused:
            refused.wait(SECONDS)
            lines = refused.communicate()[1].splitlines()
            if refused.returncode != 2 or not lines[-1].endswith("has another token"):
                result.wrong.append(f"a wrong token: status {refused.returncode}, {lines[-1:]}")
            result.fired["wrong token"] += 1
        with running(folder, *launch, "--checkpoints", f"{path}/checkpoints") as process:
            wait_until(lambda: _ended(process) or finished(url) > 3, SECONDS)
            os.kill(descendants(nodes.process.pid, "ray::PackTrial")[0], signal.SIGKILL)
            result.fired["Ray worker"] += 1
            before = finished(url)
            wait_until(lambda: _ended(process) or finished(url) > before + 3, SECONDS)
            nodes.kill(2)
            result.fired["Ray node"] += 1
            ended(process, 0, SECONDS)
        search(folder, "launch", SPACE, *SIZES, "--workers", "2", seconds=SECONDS)
        if raw(url, "SELECT DISTINCT state FROM trials") != [("finished",)]:
            result.wrong.append("on Ray not every trial has finished")
        expected, actual = metrics(f"sqlite:///{folder}/graft.db"), metrics(url)
        if actual.keys() != expected.keys() or any(abs(actual[key] - expected[key]) > 1e-9 for key in actual):
            result.wrong.append("on Ray the metrics are not those of an undisturbed run")
    return result


def _ended(process: Launched) -> bool:
    """Return False; raises AssertionError with what a launch said that has ended too early."""
    if process.poll() is not None:
        raise AssertionError(process.communicate()[1])
    return False


@contextmanager
def _database_of(kind: str, folder: str) -> Generator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/ray.db"
        return
    with running_server(place_for_server()) as server, server.database() as url:
        yield url


@contextmanager
def _cluster() -> Generator[Nodes]:
    with _token(uuid.uuid4().hex), open_nodes() as nodes:
        yield nodes


@contextmanager
def _token(token: str) -> Generator[None]:
    """Yield the environment with this token."""
    before = os.environ.get("RAY_AUTH_TOKEN")
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    try:
        yield
    finally:
        os.environ.pop("RAY_AUTH_TOKEN") if before is None else os.environ.update(RAY_AUTH_TOKEN=before)
