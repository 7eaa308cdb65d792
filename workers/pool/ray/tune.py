"""The Ray pool: a Tune experiment whose trials are long-lived pack workers, one per device or share of one.

Tune places workers, notices dead ones and logs their aggregates; its searcher is one of ours (`placing`), which
asks for a worker wherever there is room for one, on nodes that join and after those that leave. It never sees our
trials: lanes are steered by `exchange`, a method of the controller actor, since Tune's own searchers and schedulers act
on whole actors, cost a fraction of a second each time, and forget what they knew on restore.
"""

from __future__ import annotations

import functools
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray import tune
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError, RuntimeEnvSetupError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spaces.errors import GraftError, StudyError
from spaces.plugins.bundles import Outside
from workers.pool import Saving, Steering
from workers.pool.logs import last_line
from workers.pool.ray.cluster import Cluster
from workers.pool.ray.connecting import SWIFT, connect, swift
from workers.pool.ray.controller_actor import ControllerActor
from workers.pool.ray.nodes import Nodes
from workers.pool.ray.placing import EndOfStudy, Placing
from workers.pool.ray.serving import serve
from workers.pool.slots import Share, Slots, room_on, share_of

POLL_SECONDS = 0.5
SWEEP_SECONDS = 1.0


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
    `outside`: plug-ins and data that workers are sent, since no node need have their files.
    `watch` is called with the controller's progress a few times a second, and returns True to ask for a stop. Raises
    the controller's GraftError, and StudyError for a cluster that cannot be used.
    """
    connect(cluster)
    try:
        controller = _start_actor(make_controller)
        try:
            ray.get(swift(controller.progress)())  # the controller's own errors, before any worker is placed
            sent = ray.put(outside) if outside.contents else outside  # data is sent to each node once
            _train(
                controller,
                cluster,
                functools.partial(serve, controller, width=width, saving=saving, outside=sent),
                watch,
            )
            watch(ray.get(swift(controller.progress)()))
        except RayTaskError as error:
            cause: Any = error.cause  # pyright: ignore[reportUnknownMemberType]
            raise (cause if isinstance(cause, GraftError) else error) from None
        except RuntimeEnvSetupError as error:
            raise StudyError(f"--ray-env: the cluster cannot prepare it: {last_line(error)}") from None
        except RayActorError:
            raise StudyError("the controller's process died (killed, or out of memory?); it can be resumed") from None
        except RayError as error:
            raise StudyError(f"the Ray cluster does not go on: {last_line(error)}; the study can be resumed") from None
        finally:
            with suppress(RayError, GetTimeoutError):  # the process is gone, and the database's lock with it
                ray.get(controller.close.remote(), timeout=30)
    finally:
        ray.shutdown()


def _start_actor(make_controller: Callable[[], Steering]) -> Any:
    """Return the controller's actor, on this node: it has the database."""
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
                ray.get(controller.give_up.remote(last_line(errors[-1])))
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
