"""What runs on a cluster's nodes: a pack worker that speaks to the controller's actor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayActorError

from spaces.plugins.active import install
from spaces.plugins.bundles import Outside
from spaces.records import Directives, Offer, Report
from workers.engine.machine.devices import default_device, describe_unused_gpu, device_name
from workers.engine.machine.process import prepare
from workers.pool import Saving
from workers.pool.logs import begin_log, log_exchange, log_file
from workers.pool.slots import name_worker
from workers.pool.worker_settings import WorkerSettings, make_worker

_LOG = logging.getLogger("graft.pool")
SWIFT = "swift"
"""The concurrency group of calls of the controller's actor that never wait for an exchange."""


def swift(method: Any) -> Any:
    """A method of the controller's actor, called in a thread of its own kind."""
    return method.options(concurrency_group=SWIFT).remote


def serve(controller: Any, slot: int, width: int | None, saving: Saving | None, outside: Outside = Outside()) -> None:
    """What runs inside a Tune trial: a pack worker on the device that Tune placed it on.

    One whose lease ran out goes on as a new worker in the same slot: what it held is others' by then. `outside`: the
    study's plug-ins, whose files need not be here.
    """
    install(outside)
    prepare()
    begin_log()
    node = ray.get_runtime_context().get_node_id()
    tune.report({"node": node, "reports": 0})
    done = False
    while not done:
        name = name_worker("ray", slot)
        ray.get(controller.attach.remote(slot, name))
        done = _work(controller, name, node, width, saving)
        _LOG.info("%s %s", name, "is done" if done else "lost its lease; what it held is trained again")


def _work(controller: Any, name: str, node: str, width: int | None, saving: Saving | None) -> bool:
    """Be one worker to its end; False when that was its lease's."""
    device, made = default_device(), 0
    _LOG.info("%s begins on node %s: %s; code in %s", name, node, device_name(device), Path(__file__).parents[3])
    if unused := describe_unused_gpu():
        _LOG.warning(unused)

    def exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        nonlocal made
        answer: Directives = ray.get(controller.exchange.remote(list(reports), offer))
        if reports:
            made += len(reports)
            # From whichever thread exchanges: Tune's session belongs to the process, and takes one report at a time.
            tune.report({"node": node, "reports": made, "free_lanes": offer.lanes})
        return answer

    def renew() -> bool:
        try:
            return ray.get(swift(controller.renew)(name))
        except RayActorError:
            return False  # the controller is dead, and the next call of it says so where it is heard

    settings = WorkerSettings(device=device, width=width, saving=saving, log=log_file())
    return make_worker(name, settings, log_exchange(exchange), renew).run()
