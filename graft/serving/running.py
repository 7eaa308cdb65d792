"""A study of the service: its controller and its workers, in a thread of its own."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, final

from graft.launching.changes import settle_changes
from graft.launching.checkpoints import Checkpoints
from graft.launching.employing import train
from graft.launching.enrolling import begin_controller, find_study
from graft.launching.placement import Placement
from graft.launching.process.run_log import RunLog
from graft.launching.progress_text import closing_line
from graft.plugins.stored import plugins_of_study
from graft.serving.lanes import LaneShares
from spaces.plugins.active import using
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from storage import QueueEntry, Store

if TYPE_CHECKING:
    from search.steering.controller import Controller
    from workers.pool.ray.ray_pool import RayPool
    from workers.pool.shared_packs import SharedPacks, StudyDevice
    from workers.pool.turns import Turns

_POLL_SECONDS = 2.0
"""Seconds after which a worker without lanes asks the controller again, to learn of a stop."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The resources that all studies of a service share; `database` is a URL."""

    database: str
    store: Store
    placement: Placement
    """The placement by `Placement.resolve`."""
    cluster: RayPool | None
    checkpoints: Checkpoints
    shares: LaneShares
    turns: Turns
    packs: defaultdict[int, SharedPacks]
    """The packs of each slot."""
    say: Callable[[str], None]


@final
class StudyRun:
    """A study that is run until it is finished, is stopped, or fails."""

    def __init__(self, pool: Pool, entry: QueueEntry, crash: str | None) -> None:
        """Prepare a run; `crash` is the crash of the last service while it ran only this study."""
        self.entry = entry
        self.error: BaseException | None = None
        """The error that ended the run, if any."""
        self.progress: Progress | None = None
        """The newest progress; None before the first."""
        self.started = time.monotonic()
        self._pool = pool
        self._crash = crash
        self.stopping = threading.Event()
        """Set to ask the study to stop, with everything kept."""
        self.thread = threading.Thread(
            # Plug-ins from outside are looked up by the context, also in the threads of workers.
            target=contextvars.Context().run,
            args=(self._run,),
            daemon=True,
            name=f"graft {entry.study}",
        )

    def start(self) -> None:
        """Start the thread. From now on the study has a share, so that others leave lanes to it.

        Raises RuntimeError if the machine has no thread left.
        """
        self._pool.shares.add(self.entry)
        self.thread.start()

    def _run(self) -> None:
        try:
            study, log = self.entry.study, RunLog.of(self._pool.database)
            with log.recording(study), using(plugins_of_study(self._pool.database, study)):
                placement = self._pool.placement
                where = placement.describe() if placement.executor == "ray" else placement.device
                log.write(study, f"run by the service: {self.entry.trials:,} trials, {where}")
                self._train()
                if self.progress:
                    log.write(study, closing_line(study, self.progress, time.monotonic() - self.started))
        except BaseException as error:
            self.error = error
        finally:
            self._pool.shares.remove(self.entry.study_id)

    def _train(self) -> None:
        pool, entry = self._pool, self.entry
        row = find_study(pool.database, entry.study)
        if row["state"] == "finished":
            return
        for line in settle_changes(pool.database, entry.study, pool.placement, accept=False, store=pool.store):
            pool.say(line)
        saving = pool.checkpoints.saving(pool.database, row)
        url = pool.checkpoints.absolute_url()
        controller = begin_controller(pool.store, row, saving, url, self._crash, keep_open=True)
        shared = SharedController(controller, entry.study_id, pool.shares)

        def watch(progress: Progress) -> bool:
            self.progress = progress
            return self.stopping.is_set()

        try:
            study_devices = partial(self._study_device, makes_copies=controller.makes_copies)
            train(shared, pool.placement, saving, watch, cluster=pool.cluster, study_devices=study_devices)
            self.progress = controller.progress()
        finally:
            controller.close()

    def _study_device(self, slot: int, *, makes_copies: bool) -> StudyDevice:
        """Return the device of a slot for this study."""
        from workers.pool.shared_packs import StudyDevice

        pool, study = self._pool, self.entry.study_id

        def group() -> Hashable:
            # A copy takes over its parent's state only if it is placed before the parent makes
            # another step, so that others must not train the lanes while the controller decides.
            # And a higher class is to have more of the time.
            return pool.shares.priority(study), study if makes_copies else None

        return StudyDevice(
            study=study,
            turns=pool.turns.of(slot, study, partial(pool.shares.part, study)),
            packs=pool.packs[slot],
            group=group,
        )


@final
class SharedController:
    """The `workers.pool.Steering` of a study's controller, with offers cut to the study's lanes."""

    def __init__(self, controller: Controller, study: int, shares: LaneShares) -> None:
        self._controller = controller
        self._study = study
        self._shares = shares
        self._polled: dict[str, float] = {}
        """Worker -> the time at which its last offer reached the controller."""
        self.renew = controller.renew
        self.sweep = controller.sweep
        self.progress = controller.progress
        self.request_stop = controller.request_stop
        self.close = controller.close

    def handle_crash(self, worker: str) -> None:
        """Handle a crash as the controller does; the worker's lanes are free for the next offer."""
        self._shares.lose(self._study, worker)
        self._controller.handle_crash(worker)

    def handle_departure(self, worker: str) -> None:
        """Handle the end of a worker that no trial caused, as `handle_crash` does."""
        self._shares.lose(self._study, worker)
        self._controller.handle_departure(worker)

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Exchange as the controller does, for the free lanes that the study may fill now."""
        lanes = self._shares.allow(self._study, offer)
        cut = replace(offer, lanes=lanes, surplus=self._shares.surplus(self._study))
        now = time.monotonic()
        says_nothing = not (reports or offer.holds or offer.saved or offer.steps or cut.lanes)
        if says_nothing and now < self._polled.get(offer.worker, -_POLL_SECONDS) + _POLL_SECONDS:
            return Directives()
        self._polled[offer.worker] = now
        directives = self._controller.exchange(reports, cut)
        self._shares.note(self._study, cut, directives, self._controller.progress())
        return directives
