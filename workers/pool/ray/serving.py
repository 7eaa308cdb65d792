"""What runs on a cluster's nodes: a pack worker that speaks to the controller's actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayActorError

from spaces.plugins.active import install
from spaces.plugins.bundles import Outside
from spaces.plugins.files import place_contents
from spaces.records import Directives, Offer, Report
from workers.engine.machine.process import prepare
from workers.pool import Saving
from workers.pool.logs import begin_log
from workers.pool.ray.connecting import swift
from workers.pool.ray.working import work


def serve(
    controller: Any,
    slot: int,
    width: int | None,
    saving: Saving | None,
    outside: Outside | ray.ObjectRef[Outside] = Outside(),
) -> None:
    """Run a pack worker on the device that Tune placed this trial on.

    One whose lease ran out goes on as a new worker in the same slot: what it held is others' by then. `outside`: the
    study's plug-ins, whose files need not be here, and its data, or where both are kept in the cluster.
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

    install(place_contents(ray.get(outside) if isinstance(outside, ray.ObjectRef) else outside))
    prepare()
    begin_log()
    tune.report({"node": node, "reports": 0})
    work(slot, width, saving, attach, exchange, renew)
