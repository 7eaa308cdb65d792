"""One trial trained again, alone: the numbers that it gives do not depend on where it trained before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spaces.records import Report, Trial
from workers.pack import NARROWEST, Pack
from workers.pool.process import prepare
from workers.worker import CHECK_STEPS

Watch = Callable[[int], None]
"""Called with the step reached, at least every CHECK_STEPS steps."""


def retrain(trial: Trial, *, steps: int, device: str, watch: Watch) -> list[Report]:
    """Train a trial from its step 0 for `steps` steps, fewer if it ends before, in a pack that it has for itself.

    Returns its reports in the order of steps; the last one tells of its divergence, if it diverges.
    """
    return _trained(trial, steps, device, watch)[1]


def weights(trial: Trial, *, variant: str, steps: int, device: str, watch: Watch) -> dict[str, np.ndarray]:
    """The trial's parameters by name after `steps` steps, trained again from its step 0.

    `variant`: `raw`, or one of its averages (`bema`, `bema kappa=0.3 eta=0.1`).
    """
    pack, _ = _trained(trial, steps, device, watch)
    return {name: tensor.cpu().numpy() for name, tensor in pack.weights(0, trial)[variant].items()}


def _trained(trial: Trial, steps: int, device: str, watch: Watch) -> tuple[Pack, list[Report]]:
    """The trial is in lane 0."""
    prepare()
    pack = Pack(trial, width=NARROWEST, device=device)
    pack.place([trial])
    reports: list[Report] = []
    made = 0
    while pack.running and made < steps:
        reports += pack.train(min(CHECK_STEPS, steps - made))
        made += pack.take_counts()[0]
        watch(made)
    return pack, reports
