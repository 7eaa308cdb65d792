"""What runs on a cluster's nodes: a pack worker that speaks to the controller's actor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
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
from workers.pool.exchanger import Exchange
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
    node, made = ray.get_runtime_context().get_node_id(), 0

    def attach(name: str) -> None:
        nonlocal made
        made = 0
        ray.get(controller.attach.remote(slot, name))

    def exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        nonlocal made
        answer: Directives = ray.get(controller.exchange.remote(list(reports), offer))
        if reports:
            made += len(reports)
            # From whichever thread exchanges: Tune's session belongs to the process, and takes one report at a time.
            tune.report({"node": node, "reports": made, "free_lanes": offer.lanes})
        return answer

    def renew(name: str) -> bool:
        try:
            return ray.get(swift(controller.renew)(name))
        except RayActorError:
            return False  # the controller is dead, and the next call of it says so where it is heard

    install(outside)
    prepare()
    begin_log()
    tune.report({"node": node, "reports": 0})
    work(slot, width, saving, attach, exchange, renew)


def work(
    slot: int,
    width: int | None,
    saving: Saving | None,
    attach: Callable[[str], None],
    exchange: Exchange,
    renew: Callable[[str], bool],
) -> None:
    """Be one worker after the other in a slot, as leases run out, until the controller says that it is done.

    `attach` is told the name of each, and `renew` renews the lease of the one of this name.
    """
    node = ray.get_runtime_context().get_node_id()
    done = False
    while not done:
        name, device = name_worker("ray", slot), default_device()
        attach(name)
        _LOG.info("%s begins on node %s: %s; code in %s", name, node, device_name(device), Path(__file__).parents[3])
        if unused := describe_unused_gpu():
            _LOG.warning(unused)
        settings = WorkerSettings(device=device, width=width, saving=saving, log=log_file())

        def renew_this(name: str = name) -> bool:
            return renew(name)

        done = make_worker(name, settings, log_exchange(exchange), renew_this).run()
        _LOG.info("%s %s", name, "is done" if done else "lost its lease; what it held is trained again")
