"""Workers of this machine for a controller of this process: threads, or processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from graft.launching.placement import Placement
from spaces.plugins.active import current
from spaces.records import Progress

if TYPE_CHECKING:
    from workers.pool import Saving, Steering
    from workers.pool.shared_packs import StudyDevice


def train_here(
    controller: Steering,
    placement: Placement,
    saving: Saving | None,
    watch: Callable[[Progress], bool],
    shares: Callable[[int], StudyDevice] | None = None,
) -> None:
    """Train until the controller is done, where the placement says: inline, processes, or a table that
    answers; all else as `inline.run`.

    Processes share no devices by `shares`: what other studies train there is the driver's matter.
    """
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
        shares=shares,
    )
