"""How the pools make a worker."""

from __future__ import annotations

import math
from collections.abc import Callable

from workers.engine.checkpoints import Archive
from workers.engine.devices import default_width
from workers.engine.widths import FoundWidths
from workers.pool import Saving
from workers.pool.courier import Exchange
from workers.pool.worker import Worker


def make_worker(
    name: str,
    exchange: Exchange,
    device: str,
    width: int | None,
    *,
    renew: Callable[[], bool],
    saving: Saving | None = None,
    log: str = "",
) -> Worker:
    """A worker whose packs have at most `width` lanes; None: it searches for the fastest width."""
    return Worker(
        name=name,
        exchange=exchange,
        device=device,
        width=width or default_width(device),
        finder=None if width else FoundWidths(device=device),
        renew=renew,
        archive=Archive(saving.url, saving.study) if saving else None,
        save_seconds=saving.seconds if saving else math.inf,
        log=log,
    )
