"""Workers for a controller of this process: threads, processes, or actors on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from graft.launching.placement import Placement
from spaces.plugins.active import current
from spaces.plugins.files import with_contents
from spaces.progress import Progress

if TYPE_CHECKING:
    from workers.pool import Saving, Steering
    from workers.pool.ray.ray_pool import RayPool
    from workers.pool.shared_packs import StudyDevice


def open_cluster(placement: Placement, *, shared: bool) -> AbstractContextManager[RayPool | None]:
    """Connect to the placement's Ray cluster, if any; raises StudyError if it cannot be used."""
    if placement.executor != "ray":
        return nullcontext()
    from workers.pool.ray.ray_pool import RayPool

    return RayPool(placement.cluster(shared=shared))


def train(
    controller: Steering,
    placement: Placement,
    saving: Saving | None,
    watch: Callable[[Progress], bool],
    *,
    cluster: RayPool | None,
    study_devices: Callable[[int], StudyDevice] | None = None,
) -> None:
    """Train until the controller is done: inline, in processes, by a table, or on the open cluster.

    The arguments are those of `inline.run`; only threads use `study_devices`.
    """
    if cluster:
        outside = current() if placement.ray_address is None else with_contents(current())
        cluster.run(controller, width=placement.width, saving=saving, watch=watch, outside=outside)
        return
    from workers.pool import inline, processes

    if placement.surrogate is not None:
        from graft.launching.surrogate import TrialTable
        from graft.launching.surrogate import run as answer

        answer(controller, TrialTable(Path(placement.surrogate)), lanes=placement.width, watch=watch)
        return
    if placement.executor == "processes":
        processes.run(
            controller,
            locations=placement.locations(),
            width=placement.width,
            workers=placement.process_count(),
            saving=saving,
            watch=watch,
            outside=current(),
        )
        return
    inline.run(
        controller,
        device=str(placement.device),
        width=placement.width,
        workers=placement.workers,
        saving=saving,
        watch=watch,
        study_devices=study_devices,
    )
