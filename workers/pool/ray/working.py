"""A pack worker on a node of a cluster, of a launch or of a service."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import ray

from workers.engine.machine.devices import default_device, describe_unused_gpu, device_name
from workers.pool import Saving
from workers.pool.exchanger import Exchange
from workers.pool.logs import log_exchange, log_file
from workers.pool.slots import name_worker
from workers.pool.worker_settings import WorkerSettings, make_worker

_LOG = logging.getLogger("graft.pool")


def work(
    slot: int,
    width: int | None,
    saving: Saving | None,
    attach: Callable[[str], None],
    exchange: Exchange,
    renew: Callable[[str], bool],
) -> None:
    """Run one worker after the other in a slot, as leases run out, until the controller says that the study is done.

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
