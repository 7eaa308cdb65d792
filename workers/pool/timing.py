"""How fast this device trains a given trial, by training it for a moment."""

from __future__ import annotations

import dataclasses
import time

from spaces.records import Trial
from workers.pack import Pack

WARM_UP_STEPS = 3
STEPS_BETWEEN_LOOKS = 10


def model_steps_per_second(trial: Trial, *, width: int, device: str, seconds: float = 1.0) -> float:
    """Training steps of single models per second, validations included, in a pack of `width` lanes of this trial.

    One worker's rate: a CPU has a worker per core.
    """
    every = trial.config["training"]["validate_every"]
    config = {**trial.config, "training": {**trial.config["training"], "steps": 10**9, "validate_every": 10**9}}
    pack = Pack(dataclasses.replace(trial, config=config), width=width, device=device)
    pack.place(dataclasses.replace(trial, number=n, seed=n, config=config) for n in range(width))
    pack.train(WARM_UP_STEPS)
    start, steps = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        pack.train(STEPS_BETWEEN_LOOKS)
        steps += STEPS_BETWEEN_LOOKS
    pack.evaluate(range(width))  # records the validation
    start = time.perf_counter()
    pack.evaluate(range(width))
    validation = time.perf_counter() - start
    return width / (elapsed / steps + validation / every)
