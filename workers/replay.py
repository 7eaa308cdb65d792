"""One trial trained again, alone: the numbers that it gives do not depend on where it trained before."""

from __future__ import annotations

from collections.abc import Callable

from spaces.records import Report, Trial
from workers.pack import NARROWEST, Pack
from workers.pool.process import prepare
from workers.worker import CHECK_STEPS


def retrain(trial: Trial, *, steps: int, device: str, watch: Callable[[int], None]) -> list[Report]:
    """Train a trial from its step 0 for `steps` steps, fewer if it ends before, in a pack that it has for itself.

    Returns its reports in the order of steps; the last one tells of its divergence, if it diverges. `watch` is called
    with the step reached, at least every CHECK_STEPS steps.
    """
    prepare()
    pack = Pack(trial, width=NARROWEST, device=device)
    pack.place([trial])
    reports: list[Report] = []
    made = 0
    while pack.running and made < steps:
        reports += pack.train(min(CHECK_STEPS, steps - made))
        made += pack.take_counts()[0]
        watch(made)
    return reports
