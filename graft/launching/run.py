"""A stored study is run: its controller in this process or on a cluster, its workers in a pool."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graft.launching.changes import settle_changes
from graft.launching.checkpoints import Checkpoints
from graft.launching.claiming import find_study, open_controller
from graft.launching.employing import train_here
from graft.launching.placement import Placement
from graft.launching.planning.reading import begin_loading_steps
from graft.launching.process.crash_record import CrashRecord
from graft.launching.process.run_log import RunLog
from graft.launching.progress_text import closing_line
from graft.plugins.families import families
from graft.plugins.stored import plugins_of_study
from spaces import parse_stored
from spaces.plugins.active import current, install, using
from spaces.plugins.files import with_contents
from spaces.records import Progress

if TYPE_CHECKING:
    from search.steering.controller import Controller
    from spaces.plugins.bundles import Outside
    from workers.pool import Saving


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A study of a database, and how it is to be run."""

    database: str
    """Its URL."""
    study: str
    placement: Placement
    checkpoints: Checkpoints
    accept_changes: bool = False
    """Whether it goes on although what determines its numbers is another than before (`changes.settle_changes`)."""


def run_study(
    request: RunRequest, show: Callable[[Progress], None], stop_requested: Callable[[], bool] = lambda: False
) -> Progress:
    """Run a study until it is finished or stopped; its progress then.

    `show` is called with its progress, often. `stop_requested` is asked as often. Raises StudyError if there is no such
    study, if another process runs it, if it cannot be run as requested, or if it would go on otherwise than before and
    that is not accepted.
    """
    settle_changes(request.database, request.study, request.placement, accept=request.accept_changes)
    study = find_study(request.database, request.study)
    saving = request.checkpoints.saving(request.database, study)
    url = request.checkpoints.absolute_url()
    record = CrashRecord.of(request.database, study)
    open_study = functools.partial(open_controller, request.database, request.study, saving, url, record.read())

    def watch(progress: Progress) -> bool:
        show(progress)
        return stop_requested()

    run = _run_ray if request.placement.executor == "ray" else _run_here
    log = RunLog.of(request.database)
    with log.recording(request.study), using(plugins_of_study(request.database, request.study)):
        here = request.placement.device if request.placement.executor not in ("ray", "surrogate") else None
        if here and study["state"] != "finished":  # those of a new study have begun, but not of a resumed one
            begin_loading_steps(parse_stored(study, families()), here)
        log.write(
            request.study,
            f"launched: {study['trials']:,} trials, {request.placement.device or request.placement.executor}",
        )
        started = time.monotonic()
        progress = run(open_study, request.placement, saving, watch, record)
        log.write(request.study, closing_line(request.study, progress, time.monotonic() - started))
        return progress


def _run_here(
    open_study: Callable[[], Controller],
    placement: Placement,
    saving: Saving | None,
    watch: Callable[[Progress], bool],
    record: CrashRecord,
) -> Progress:
    """Train with workers of this machine: threads of this process, or processes of their own."""
    controller = open_study()
    try:
        with record:
            train_here(controller, placement, saving, watch)
        return controller.progress()
    finally:
        controller.close()


def _run_ray(
    open_study: Callable[[], Controller],
    placement: Placement,
    saving: Saving | None,
    watch: Callable[[Progress], bool],
    record: CrashRecord,
) -> Progress:
    from workers.pool.ray.access import stay_on_loopback

    if placement.ray_address is None:
        stay_on_loopback()
    cluster = placement.cluster()
    from workers.pool.ray import tune as ray_tune

    last: list[Progress] = []

    def show(progress: Progress) -> bool:
        last[:] = [progress]
        return watch(progress) or progress.stopping

    variables = {name: value for name, value in os.environ.items() if name.startswith("PG")}
    open_study = functools.partial(_open_with, variables, current(), open_study)
    outside = current() if placement.ray_address is None else with_contents(current())
    ray_tune.run(open_study, cluster=cluster, width=placement.width, saving=saving, watch=show, outside=outside)
    record.clear()
    return last[0]


def _open_with(variables: Mapping[str, str], outside: Outside, open_study: Callable[[], Controller]) -> Controller:
    """Open a study in another process, where libpq and the plug-ins from outside are to be found as they are here.

    A cluster's processes have the variables of who started it.
    """
    os.environ.update(variables)
    install(outside)
    return open_study()
