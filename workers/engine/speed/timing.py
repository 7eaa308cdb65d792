"""Rates at which this device trains a given trial, by training it for a moment."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from spaces.records import Trial
from workers.engine.fused.step import FusedStep
from workers.engine.machine.process import flush_subnormals, use_device
from workers.engine.pack import NARROWEST, Pack
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.stepping import stepper_of
from workers.engine.step import Step, step_of
from workers.training.recipe import Recipe, layout_of

WARM_UP_STEPS = 3
BURST_SECONDS = 0.05
LONGEST_BURST = 1000
"""Most steps of a burst: those of diverged lanes take no time."""
TURNS = 15
"""Bursts of each pack when packs are timed beside one another."""
Clock = Callable[[], float]
"""Gives seconds since some time."""
VALIDATIONS = 5
"""Short bursts of which the median is taken."""
VALIDATED_LANES = 2
"""Lanes whose validation is timed on a CPU, where more take as much longer."""


def model_steps_per_second(
    trial: Trial, *, width: int, device: str, seconds: float = 1.0, clock: Clock | None = None
) -> float:
    """Return single models' optimizer steps per second in a pack, validations included.

    The pack has `width` lanes of this trial, as one worker's; a CPU has a worker per core. The
    median of bursts of `seconds` in all counts, on a CPU in seconds of this thread, so that other
    programs do not count, unless there is another `clock`.
    """
    every, clock = trial.config["training"]["validate_every"], clock or _clock_of(device)
    pack = make_pack_of_copies(trial, width, device)
    pack.train(WARM_UP_STEPS)
    burst = max(1, min(LONGEST_BURST, int(BURST_SECONDS / _seconds_a_step(pack, 1, clock))))
    end, turns = clock() + seconds, list[float]()
    while not turns or (clock() < end and pack.running):
        turns.append(_seconds_a_step(pack, burst, clock))
    few = VALIDATED_LANES if torch.device(device).type == "cpu" else width
    validation = _seconds_to_validate(pack, few, clock) if pack.running else 0.0
    return width / (statistics.median(turns) + validation / every)


def _clock_of(device: str) -> Clock:
    """Return a clock of seconds: on a CPU this thread's, which does all of a worker's work."""
    return time.thread_time if torch.device(device).type == "cpu" else time.perf_counter


def best_rate(trial: Trial, width: int, device: str, seconds: float = 0.3) -> float:
    """Return single models' optimizer steps per second in the fastest of several bursts.

    Other work only slows a burst. On a CPU seconds are those of this thread, which does all of a
    worker's work: other programs do not count. Nothing is validated, which would be recorded for
    each width.
    """
    clock, pack = _clock_of(device), make_pack_of_copies(trial, width, device)
    pack.train(1)  # records the step
    return width / _fastest(lambda steps: _seconds_a_step(pack, steps, clock), seconds)


def _fastest(train: Callable[[int], float], seconds: float) -> float:
    """Return the fewest seconds a step of several bursts, which take `seconds` in all."""
    fastest = train(1)
    burst = max(1, min(50, int(BURST_SECONDS / fastest)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        fastest = min(fastest, train(burst))
    return fastest


def rates_beside(trials: Sequence[Trial], width: int, device: str) -> list[float]:
    """Return model-steps per second of packs that take turns, on a CPU by this thread's time."""
    packs = [make_pack_of_copies(trial, width, device) for trial in trials]
    return [width * rate for rate in rates_in_turns(packs, device)]


class Trains(Protocol):
    """A maker of optimizer steps: a pack, or another loop to compare one with."""

    def train(self, steps: int, /) -> object:
        """Make this many steps."""


def rates_in_turns(loops: Sequence[Trains], device: str) -> list[float]:
    """Return loops' steps per second, medians over turns, whose ratios repeat on a busy machine."""
    clock = _clock_of(device)
    bursts: list[int] = []
    for loop in loops:
        loop.train(WARM_UP_STEPS)  # records the step, which torch plans when it is first replayed
        bursts.append(max(1, int(BURST_SECONDS / _seconds_a_step(loop, WARM_UP_STEPS, clock))))
    pairs = [*zip(loops, bursts, strict=True)]
    turns = [[_seconds_a_step(loop, burst, clock) for loop, burst in pairs] for _ in range(TURNS)]
    return [1 / statistics.median(seconds) for seconds in zip(*turns, strict=True)]


MakeStep = Callable[[Recipe, str, torch.device], Step | FusedStep]
"""Makes the step of a recipe, given its structure and the device."""


def step_rate(trial: Trial, *, width: int, device: str, make: MakeStep | None = None, seconds: float = 0.5) -> float:
    """Return single models' optimizer steps per second, data included, of `width` copies.

    `make` makes a step that need not be the fastest, such as `TracedStep`. The fastest of several
    bursts counts, as in `best_rate`, and nothing is validated.
    """
    where = torch.device(device)
    use_device(where)
    recipe = Recipe.of(trial.config).pad()
    tensors = LaneTensors.of_copies(trial, recipe, layout_of(recipe, where), max(width, NARROWEST), where)
    asked = recipe, trial.structure, where
    step = make(*asked) if make else step_of(*asked, width)
    advance = stepper_of(recipe, step, where).of([None] * max(width, NARROWEST), tensors)
    clock = _clock_of(device)

    @flush_subnormals()
    def train(steps: int) -> float:
        """Return the seconds of a step."""
        start, made = clock(), 0
        while made < steps:
            made += advance(steps - made)
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        return (clock() - start) / steps

    train(WARM_UP_STEPS + 1)  # records the step, and captures it
    return width / _fastest(train, seconds)


def _seconds_a_step(pack: Trains, steps: int, clock: Clock) -> float:
    start = clock()
    pack.train(steps)
    return (clock() - start) / steps


def _seconds_to_validate(pack: Pack, most: int, clock: Clock) -> float:
    """Return the seconds of all lanes, by those of a few: grids of averages take minutes."""
    lanes = list(pack.running)
    few = lanes[:most]
    pack.evaluate(few)  # records the validation
    turns: list[float] = []
    while len(turns) < VALIDATIONS and sum(turns) < BURST_SECONDS:
        start = clock()
        pack.evaluate(few)
        turns.append(clock() - start)
    return statistics.median(turns) * len(lanes) / len(few)


def make_pack_of_copies(trial: Trial, width: int, device: str) -> Pack:
    """Return a pack that never reports."""
    config = {**trial.config, "training": {**trial.config["training"], "steps": 10**9, "validate_every": 10**9}}
    copies = [dataclasses.replace(trial, number=n, seed=n, config=config, lineage=()) for n in range(width)]
    pack = Pack(copies[0], width=width, device=device)
    pack.fill(copies)
    return pack
