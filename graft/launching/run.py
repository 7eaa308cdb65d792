"""Runs a stored study: its controller in this process, its workers in a pool or a table in their place."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graft.launching.checkpoints import Checkpoints
from graft.launching.employing import open_cluster, train
from graft.launching.enrolling import find_study, open_controller
from graft.launching.placement import Placement
from graft.launching.planning.reading import begin_loading_steps
from graft.launching.process.crash_record import CrashRecord
from graft.launching.process.run_log import RunLog
from graft.launching.progress_text import closing_line
from graft.plugins.families import families
from graft.plugins.stored import plugins_of_study
from spaces import parse_stored
from spaces.errors import StudyError
from spaces.plugins.active import using
from spaces.progress import Progress

if TYPE_CHECKING:
    from search.steering.controller import Controller


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A study of a database (a URL), its resolved placement, and its checkpoints."""

    database: str
    study: str
    placement: Placement
    checkpoints: Checkpoints


def run_study(
    request: RunRequest, show: Callable[[Progress], None], stop_requested: Callable[[], bool] = lambda: False
) -> Progress:
    """Run a study until it is finished or stopped, and return its progress.

    `show` and `stop_requested` are called often. The caller has settled changes since the last run
    (`changes.settle_changes`). Raises StudyError if the study is missing, is run by another
    process, or cannot be run as requested.
    """
    study = find_study(request.database, request.study)
    saving = request.checkpoints.saving(request.database, study)
    url = request.checkpoints.absolute_url()
    record = CrashRecord.of(request.database, study)

    def watch(progress: Progress) -> bool:
        show(progress)
        return stop_requested()

    log = RunLog.of(request.database)
    placement = request.placement
    with log.recording(request.study), using(plugins_of_study(request.database, request.study)):
        here = placement.device if placement.executor not in ("ray", "surrogate") else None
        if here and study["state"] != "finished":  # `search launch` has begun this: again costs little
            begin_loading_steps(parse_stored(study, families()), here)
        log.write(request.study, f"launched: {study['trials']:,} trials, {here or placement.executor}")
        started = time.monotonic()
        # Before control of the study is taken, since it may fail or take long.
        with open_cluster(placement, shared=False) as cluster:
            controller = open_controller(request.database, request.study, saving, url, record.read())
            with closing(controller), record:  # which clears what was read
                _check_copies(placement, controller)
                train(controller, placement, saving, watch, cluster=cluster)
                progress = controller.progress()
        log.write(request.study, closing_line(request.study, progress, time.monotonic() - started))
        return progress


def _check_copies(placement: Placement, controller: Controller) -> None:
    """Raise StudyError if a table is to answer copies, which go on from the state of another trial."""
    if placement.surrogate is not None and controller.makes_copies:
        raise StudyError("--surrogate: no table knows how a copy goes on; leave population out of search.stopping")
