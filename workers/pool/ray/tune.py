"""The Ray pool: a Tune experiment whose trials are long-lived pack workers, one per device or share of one.

Tune places workers, notices dead ones and logs their aggregates; its searcher is one of ours (`ray_placing`), which
asks for a worker wherever there is room for one, on nodes that join and after those that leave. It never sees our
trials: lanes are steered by `exchange`, a method of the controller actor, since Tune's own searchers and schedulers act
on whole actors, cost a fraction of a second each time, and forget what they knew on restore. Only `ray_*` imports ray.
"""

from __future__ import annotations

import functools
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A cluster runs what it is sent, so that both ends must have its token; who has none says RAY_AUTH_MODE=disabled.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# Read when ray is imported. Tune's thread may outlive an error: it would start a second cluster after our shutdown.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

import ray
from ray import tune
from ray.exceptions import (
    AuthenticationError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.runtime_env import RuntimeEnv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spaces.errors import GraftError, StudyError
from spaces.plugins.bundles import Outside
from workers.pool import Saving, Steering
from workers.pool.ray.access import check_access
from workers.pool.ray.controller_actor import ControllerActor
from workers.pool.ray.placing import EndOfStudy, Nodes, Placing
from workers.pool.ray.serving import SWIFT, serve, swift
from workers.pool.slots import Share, Slots, room_on, share_of

POLL_SECONDS = 0.5
SWEEP_SECONDS = 1.0
KNOCK_SECONDS = 10.0
CONNECT_SECONDS = "5"
"""How long Ray may try where something listens; read by Ray from a variable."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where to run: an existing cluster's address, or this machine when None; and on how much of it."""

    address: str | None
    workers: int | None
    """None: one worker per GPU of the cluster, or per core where there is none, also on nodes that join later."""
    packages: Sequence[str]
    """Graft's own packages, which each node gets as they are here."""
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What Ray prepares on each node before our code runs there: its `pip`, `uv`, `conda`, `env_vars`."""


def run(
    make_controller: Callable[[], Steering],
    *,
    cluster: Cluster,
    width: int | None,
    saving: Saving | None,
    watch: Callable[[Any], bool],
    outside: Outside = Outside(),
) -> None:
    """Train until the controller is done.

    `make_controller` is called in the controller's process on this node. `saving` None: no checkpoints are written.
    `outside`: plug-ins that workers are sent, since no node need have their files.
    `watch` is called with the controller's progress a few times a second, and returns True to ask for a stop. Raises
    the controller's GraftError, and StudyError for a cluster that cannot be used.
    """
    _start(cluster)
    try:
        controller = _start_actor(make_controller)
        try:
            ray.get(swift(controller.progress)())  # the controller's own errors, before any worker is placed
            _train(
                controller,
                cluster,
                functools.partial(serve, controller, width=width, saving=saving, outside=outside),
                watch,
            )
            watch(ray.get(swift(controller.progress)()))
        except RayTaskError as error:
            raise _ours(error) from None
        except RuntimeEnvSetupError as error:
            raise StudyError(f"--ray-env: the cluster cannot prepare it: {_last_line(error)}") from None
        except RayActorError:
            raise StudyError("the controller's process died (killed, or out of memory?); it can be resumed") from None
        except RayError as error:
            raise StudyError(f"the Ray cluster does not go on: {_last_line(error)}; the study can be resumed") from None
        finally:
            _close(controller)
    finally:
        ray.shutdown()


def _start(cluster: Cluster) -> None:
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
        raise StudyError(f"{at}: {_last_line(error)}") from None
    finally:
        signal.signal(signal.SIGTERM, ours)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a worker's death is a traceback there, and mended here


def _environment(cluster: Cluster) -> RuntimeEnv:
    """What is asked for, and our own packages as they are here: all nodes run what this one runs."""
    root = Path(__file__).parents[3]
    try:
        return RuntimeEnv(**cluster.environment, py_modules=[str(root / package) for package in cluster.packages])
    except (TypeError, ValueError) as error:
        raise StudyError(f"--ray-env: {_last_line(error)}") from None


def _knock(address: str) -> None:
    """Raise OSError at once where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


@contextmanager
def _hush() -> Generator[None]:
    """What Ray's own machinery prints past Python while it connects is left out: its exceptions say it again."""
    sys.stderr.flush()
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def _start_actor(make_controller: Callable[[], Steering]) -> Any:
    """The controller's actor, on this node: it has the database."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = ray.remote
    actor = remote(concurrency_groups={SWIFT: 1}, num_cpus=0, scheduling_strategy=here)(ControllerActor)
    return actor.remote(make_controller)


def _train(controller: Any, cluster: Cluster, work: Callable[[int], None], watch: Callable[[Any], bool]) -> None:
    """Fit the Tuner in a thread, so that this one can watch and be interrupted."""
    failure: list[BaseException] = []
    nodes = Nodes()
    share = share_of(nodes.devices(), cluster.workers)
    slots = Slots(most=cluster.workers, room=lambda: room_on(nodes.recent().values(), share))

    def pack_worker(config: dict[str, int]) -> None:
        work(config["slot"])

    def fit(folder: str) -> None:
        try:
            errors = _tuner(Placing(slots, nodes, controller), pack_worker, share, folder).fit().errors
            if slots.exhausted:
                ray.get(controller.give_up.remote(_last_line(errors[-1])))
        except BaseException as error:
            failure.append(error)

    with tempfile.TemporaryDirectory(prefix="graft-tune-", ignore_cleanup_errors=True) as folder:
        thread = threading.Thread(target=fit, args=(folder,), daemon=True)
        thread.start()
        _attend(controller, slots, watch, thread)
    if failure:
        raise failure[0]


def _attend(controller: Any, slots: Slots, watch: Callable[[Any], bool], thread: threading.Thread) -> None:
    """Watch, ask for a stop, and have leases looked after while the thread lives."""
    sweep, swept = controller.sweep.remote(), time.monotonic()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        if watch(ray.get(swift(controller.progress)())):
            ray.get(swift(controller.request_stop)())
            slots.closed = True
        due = time.monotonic() > swept + SWEEP_SECONDS
        if due and ray.wait([sweep], timeout=0)[0]:
            sweep, swept = controller.sweep.remote(), time.monotonic()


def _tuner(placing: Placing, pack_worker: Callable[[dict[str, int]], None], share: Share, folder: str) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(pack_worker, tune.PlacementGroupFactory([dict(share)])),
        tune_config=tune.TuneConfig(search_alg=placing, num_samples=-1),
        run_config=tune.RunConfig(
            name="packs",
            storage_path=folder,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),  # a worker that died is followed by a new one of ours
            stop=EndOfStudy(placing.slots),
        ),
    )


def _close(controller: Any) -> None:
    try:
        ray.get(controller.close.remote(), timeout=30)
    except (RayError, GetTimeoutError):
        return  # the process is gone, and the database's lock with it


def _ours(error: Any) -> BaseException:
    """The GraftError inside a remote call's error, or the error itself."""
    return error.cause if isinstance(error.cause, GraftError) else error


def _last_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
