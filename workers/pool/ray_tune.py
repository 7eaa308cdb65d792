"""The Ray pool: a Tune experiment whose trials are long-lived pack workers, one per device or share of one.

Tune places workers, restarts dead ones and logs their aggregates. It never sees our trials: lanes are steered by
`exchange`, a method of the controller actor, since Tune's own searchers and schedulers act on whole actors, cost a
fraction of a second each time, and forget what they knew on restore. The only module that imports ray.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# A cluster runs what it is sent, so that both ends must have its token; who has none says RAY_AUTH_MODE=disabled.
os.environ.setdefault("RAY_AUTH_MODE", "token")
# Read when ray is imported. Tune's thread may outlive an error: it would start a second cluster after our shutdown.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

import ray
from ray import tune
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spaces.errors import GraftError, StudyError
from spaces.records import Directives, Offer, Report
from workers.pool import Steering
from workers.pool.devices import default_device
from workers.pool.process import prepare
from workers.pool.widths import employed

POLL_SECONDS = 0.5
KNOCK_SECONDS = 10.0
RETRIES = 3
"""Restarts of one worker before Tune gives it up; its trials go back to the queue each time."""


class Controller(Steering, Protocol):
    """What the actor needs of a controller beyond steering."""

    def request_stop(self) -> None:
        """Answer every later exchange with a stop; running trials go back to the queue."""
        ...

    def progress(self) -> Any:
        """A plain value for the display."""
        ...

    def close(self) -> None:
        """Release the database."""
        ...


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where to run: an existing cluster's address, or this machine when None; and on how much of it."""

    address: str | None
    workers: int | None
    """None: one worker per GPU of the cluster, or per core where there is none."""


class Desk:
    """The controller behind an actor's door: knows which attempt holds each slot, and ends the run on an error."""

    def __init__(self, make_controller: Callable[[], Controller]) -> None:
        self._controller = make_controller()
        self._holders: dict[int, str] = {}
        self._error: GraftError | None = None
        self._done = False

    def attach(self, slot: int, worker: str) -> None:
        """A worker (re)starts in a slot: what the slot's last holder trained is queued again."""
        self.detach(slot)
        self._holders[slot] = worker

    def detach(self, slot: int) -> None:
        """The slot's holder is dead."""
        if slot in self._holders:
            self._controller.lost(self._holders.pop(slot))

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """As the controller's; after an error of ours every worker is sent home, and the driver is told."""
        if self._error is None and offer.worker in self._holders.values():
            try:
                directives = self._controller.exchange(reports, offer)
                self._done = self._done or directives.done
                return directives
            except GraftError as error:
                self._error = error
        return Directives(done=True)

    def give_up(self, reason: str) -> None:
        """No worker is left: unless the controller had sent one home, that is an error."""
        if not self._done and self._error is None:
            self._error = StudyError(
                f"every pack worker died {RETRIES + 1} times, at last: {reason}; it can be resumed"
            )

    def request_stop(self) -> None:
        """As the controller's."""
        self._controller.request_stop()

    def progress(self) -> Any:
        """As the controller's; raises the error that ended the run."""
        if self._error is not None:
            raise self._error
        return self._controller.progress()

    def close(self) -> None:
        """Release the database."""
        self._controller.close()


def run(
    make_controller: Callable[[], Controller],
    *,
    cluster: Cluster,
    width: int | None,
    watch: Callable[[Any], bool],
) -> None:
    """Train until the controller is done.

    `make_controller` is called in the controller's process on this node. `watch` is called with the controller's
    progress a few times a second, and returns True to ask for a stop. Raises the controller's GraftError.
    """
    _start(cluster.address)
    try:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        remote: Any = ray.remote(Desk)
        desk = remote.options(num_cpus=0, scheduling_strategy=here).remote(make_controller)
        try:
            ray.get(desk.progress.remote())  # the controller's own errors, before any worker is placed
            _train(desk, cluster, width, watch)
            ray.get(desk.progress.remote())
            watch(ray.get(desk.progress.remote()))
        except RayTaskError as error:
            raise _ours(error) from None
        except RayActorError:
            raise StudyError("the controller's process died (killed, or out of memory?); it can be resumed") from None
        finally:
            _close(desk)
    finally:
        ray.shutdown()


def _start(address: str | None) -> None:
    # Tune's tables and Ray's worker logs are for its own users; ours are told by the display.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    ours = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place of it, which ends this process
    try:
        if address is None:
            # "local": without it Ray looks for a cluster that was started here once, and waits for it for minutes.
            ray.init(address="local", include_dashboard=False, **quiet)
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except (OSError, OverflowError, ValueError, RuntimeError, RayError) as error:
        what = f"no Ray cluster answers at {address}" if address else "Ray does not start on this machine"
        raise StudyError(f"{what}: {_last_line(error)}") from None
    finally:
        signal.signal(signal.SIGTERM, ours)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # a worker's death is a traceback there, and mended here


def _knock(address: str) -> None:
    """Raise OSError at once where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()


def _train(desk: Any, cluster: Cluster, width: int | None, watch: Callable[[Any], bool]) -> None:
    """Fit the Tuner in a thread, so that this one can watch and be interrupted."""
    failure: list[BaseException] = []

    def fit(folder: str) -> None:
        try:
            for error in _tuner(desk, cluster, width, folder).fit().errors:
                ray.get(desk.give_up.remote(_last_line(error)))
        except BaseException as error:
            failure.append(error)

    with tempfile.TemporaryDirectory(prefix="graft-tune-", ignore_cleanup_errors=True) as folder:
        thread = threading.Thread(target=fit, args=(folder,), daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            if watch(ray.get(desk.progress.remote())):
                ray.get(desk.request_stop.remote())
    if failure:
        raise failure[0]


def _tuner(desk: Any, cluster: Cluster, width: int | None, folder: str) -> tune.Tuner:
    gpus, cpus = ray.cluster_resources().get("GPU", 0), ray.cluster_resources().get("CPU", 1)
    workers = cluster.workers or int(gpus or cpus)
    share = {"cpu": _share(cpus, workers), "gpu": _share(gpus, workers)}

    def pack_worker(config: dict[str, int]) -> None:
        serve(desk, config["slot"], width)

    class Losses(tune.Callback):
        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ray.get(desk.detach.remote(trial.config["slot"]))

    return tune.Tuner(
        tune.with_resources(pack_worker, share),
        param_space={"slot": tune.grid_search(list(range(workers)))},
        run_config=tune.RunConfig(
            name="packs",
            storage_path=folder,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=RETRIES),
            callbacks=[Losses()],
        ),
    )


def _share(devices: float, workers: int) -> float:
    """Devices per worker: a whole one where there are enough, else a fraction of one, as many workers on each."""
    if devices >= workers or not devices:
        return min(1.0, devices)
    return int(1000 / math.ceil(workers / devices)) / 1000


def serve(desk: Any, slot: int, width: int | None) -> None:
    """What runs inside a Tune trial: a pack worker on the device that Tune placed it on."""
    name = f"ray-{slot}-{uuid.uuid4().hex[:8]}"
    ray.get(desk.attach.remote(slot, name))
    made = 0

    def exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        nonlocal made
        answer: Any = ray.get(desk.exchange.remote(list(reports), offer))
        if reports:
            made += len(reports)
            tune.report({"reports": made, "free_lanes": offer.lanes})
        return answer

    prepare()
    device = default_device()
    employed(name, exchange, device, width).run()


def _close(desk: Any) -> None:
    try:
        ray.get(desk.close.remote(), timeout=30)
    except (RayActorError, RayTaskError, GetTimeoutError):
        return  # the process is gone, and the database's lock with it


def _ours(error: Any) -> BaseException:
    """The GraftError inside a remote call's error, or the error itself."""
    return error.cause if isinstance(error.cause, GraftError) else error


def _last_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
