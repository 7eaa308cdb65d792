"""The embedded pool: one worker on one device in this process. No server, no cluster; starts at once."""

from __future__ import annotations

from workers.pool import Steering
from workers.worker import Worker


def run(controller: Steering, *, device: str, width: int) -> None:
    """Train until the controller is done; what `controller.exchange` raises ends the run and is passed on."""
    Worker(name="inline", exchange=controller.exchange, device=device, width=width).run()
