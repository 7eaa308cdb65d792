"""How fast this device trains a given trial, by training it for a moment."""

from __future__ import annotations

import dataclasses
import time

from spaces.records import Trial
from workers.pack import Pack

WARM_UP_STEPS = 3


def model_steps_per_second(trial: Trial, *, width: int, device: str, seconds: float = 1.0) -> float:
    """Training steps of single models per second, in a pack of `width` lanes that all train this trial."""
    config = {**trial.config, "training": {**trial.config["training"], "steps": 10**9, "validate_every": 10**9}}
    pack = Pack(dataclasses.replace(trial, config=config), width=width, device=device)
    pack.place(dataclasses.replace(trial, number=n, seed=n, config=config) for n in range(width))
    pack.train(WARM_UP_STEPS)
    start, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        pack.train(1)
        steps += 1
    return steps * width / elapsed
