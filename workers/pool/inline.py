"""The embedded pool: workers in threads of this process, without server or cluster.

A CPU gets one single-threaded worker per core rather than one worker with many threads (see
`process`). torch releases Python's lock inside an operation, so that the cores train side by side.
The workers of a GPU have a stream each, on which their packs train side by side (`side_by_side`).
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence

import torch

from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from workers.engine.machine.devices import inline_workers
from workers.engine.machine.process import prepare, use_device
from workers.pool import Saving, Steering
from workers.pool.shared_packs import StudyDevice
from workers.pool.slots import name_worker
from workers.pool.worker_settings import WorkerSettings, make_worker

SIGNALS_EVERY = 0.2
"""Seconds: a signal just before the main thread falls asleep is noticed when it wakes."""


def run(
    controller: Steering,
    *,
    device: str,
    width: int | None = None,
    workers: int | None = None,
    saving: Saving | None = None,
    watch: Callable[[Progress], bool] | None = None,
    study_devices: Callable[[int], StudyDevice] | None = None,
) -> None:
    """Train until the controller is done; the first error of any worker ends all and is raised.

    `width` None: found in training (`widths`); `workers` None: as many as suit the device; `saving`
    None: without checkpoints. `watch` gets the progress a few times a second, and returns True to
    ask for a stop. `study_devices` gives each slot's worker its device, if other studies use it,
    too.
    """
    prepare()
    shared = _SharedController(controller)
    threads: list[threading.Thread] = []
    count = workers or inline_workers(device)
    for slot in range(count):
        # Two packs of one structure would be slower on a GPU than one of all lanes.
        alone = StudyDevice(is_beside=count > 1 and torch.device(device).type == "cuda")
        study_device = study_devices(slot) if study_devices else alone
        settings = WorkerSettings(device=device, width=width, saving=saving, study_device=study_device, sharing=count)
        # With the context of this thread, in which the study's plug-ins from outside are looked up.
        employ = functools.partial(contextvars.copy_context().run, shared.employ, slot, settings)
        threads.append(threading.Thread(target=employ, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(SIGNALS_EVERY)
            if watch and watch(controller.progress()):
                controller.request_stop()
    if shared.failure:
        raise shared.failure


class _SharedController:
    """Lets several workers speak to one controller, one at a time."""

    def __init__(self, controller: Steering) -> None:
        self._controller = controller
        self._turn = threading.Lock()
        self.failure: BaseException | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        with self._turn:
            if self.failure:
                return Directives(done=True)
            try:
                return self._controller.exchange(reports, offer)
            except BaseException as error:
                self.failure = error
                raise

    def employ(self, slot: int, settings: WorkerSettings) -> None:
        """Run workers in turn, as leases run out, to the end; an error dismisses the others."""
        try:
            use_device(torch.device(settings.device), slot)
            done = False
            while not done:
                name = name_worker("inline", slot)
                renew = functools.partial(self._controller.renew, name)
                done = make_worker(name, settings, self.exchange, renew).run()
        except BaseException as error:
            with self._turn:
                self.failure = self.failure or error
