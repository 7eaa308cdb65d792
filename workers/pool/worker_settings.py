"""The making of a worker, for all pools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from workers.engine.checkpoints import Archive
from workers.engine.machine.devices import default_width
from workers.engine.speed.widths import FoundWidths
from workers.pool import Saving
from workers.pool.exchanger import Exchange
from workers.pool.shared_packs import StudyDevice
from workers.pool.worker import Worker


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """A pool's settings of a worker."""

    device: str
    width: int | None
    """Most lanes of a pack; None: it searches for the fastest width."""
    saving: Saving | None
    """None: without checkpoints."""
    log: str = ""
    """The file of its log."""
    study_device: StudyDevice | None = None
    """The device for the worker's study; None: it shares neither packs nor turns."""
    sharing: int | None = None
    """Workers that share the device's memory; None: as many as suit it."""


def make_worker(name: str, settings: WorkerSettings, exchange: Exchange, renew: Callable[[], bool]) -> Worker:
    """Return a worker that reports by `exchange` and renews its lease by `renew`."""
    device, width, saving = settings.device, settings.width, settings.saving
    return Worker(
        name=name,
        exchange=exchange,
        device=device,
        width=width or default_width(device),
        finder=None if width else FoundWidths(device=device, sharing=settings.sharing),
        renew=renew,
        archive=Archive(saving.url, saving.study) if saving else None,
        save_seconds=saving.seconds if saving else math.inf,
        log=settings.log,
        study_device=settings.study_device or StudyDevice(),
    )
