"""How fast this device trains a given trial, by training it for a moment."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from spaces.records import Trial
from workers.engine.pack import Pack
from workers.training.averaging import RAW
from workers.training.recipe import Recipe, evaluate, evaluation_sets, layout_of

WARM_UP_STEPS = 3
STEPS_BETWEEN_LOOKS = 10
BURST_SECONDS = 0.05
VALIDATED_LANES = 2
"""Whose validation is timed on a CPU, where that of more lanes takes as much longer."""


def model_steps_per_second(trial: Trial, *, width: int, device: str, seconds: float = 1.0) -> float:
    """Optimizer steps of single models per second, validations included, in a pack of `width` lanes of this trial.

    One worker's rate: a CPU has a worker per core.
    """
    every = trial.config["training"]["validate_every"]
    pack = _make_pack_of_copies(trial, width, device)
    pack.train(WARM_UP_STEPS)
    start, steps = time.perf_counter(), 0
    while ((elapsed := time.perf_counter() - start) < seconds and pack.running) or not steps:
        portion = STEPS_BETWEEN_LOOKS if steps and elapsed / steps < BURST_SECONDS / STEPS_BETWEEN_LOOKS else 1
        pack.train(portion)
        steps += portion
    few = VALIDATED_LANES if torch.device(device).type == "cpu" else width
    validation = _seconds_to_validate(pack, few) if pack.running else 0.0  # lanes that diverged are gone
    return width / (elapsed / steps + validation / every)


def variants_of(config: Mapping[str, Any]) -> list[str]:
    """The variants of its parameters that a trial is evaluated with."""
    return [variant.name for variant in (RAW, *Recipe.of(config).averaging.variants)]


def reported_metrics(trial: Trial) -> list[tuple[str, str, str]]:
    """Name, variant and condition of what a trial reports each time; found by evaluating sets of two sequences."""
    recipe = Recipe.of(trial.config)
    layout, seeds = layout_of(recipe), torch.tensor([trial.seed])
    parameters = layout.initial(seeds)[0].to(recipe.dtype)
    sets = evaluation_sets(recipe.task, seeds, 2)
    variants = [RAW, *recipe.averaging.variants]
    found = [("loss", "raw", "")]
    for (label, model), (condition, whole) in itertools.product(recipe.model.evaluations().items(), sets.items()):
        batch = {name: tensor[0, : max(2, recipe.task.evaluated_together)] for name, tensor in whole.items()}
        metrics = evaluate(recipe, layout, model, parameters, batch)
        for name in recipe.task.summary({name: float(values.mean()) for name, values in metrics.items()}):
            found += [
                (name, variant.name, " ".join(filter(None, (condition, label, variant.condition))))
                for variant in variants
            ]
    return found


def best_rate(trial: Trial, width: int, device: str, seconds: float = 0.3) -> float:
    """Optimizer steps of single models per second in the fastest of several bursts: what else runs only slows it.

    On a CPU seconds are those of this thread, which does all of a worker's work there: other programs do not count. No
    validation, which would have to be recorded for each width.
    """
    clock = time.thread_time if torch.device(device).type == "cpu" else time.perf_counter
    pack = _make_pack_of_copies(trial, width, device)
    pack.train(1)  # records the step
    fastest = _seconds_a_step(pack, 1, clock)
    burst = max(1, min(50, int(BURST_SECONDS / fastest)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        fastest = min(fastest, _seconds_a_step(pack, burst, clock))
    return width / fastest


def _seconds_a_step(pack: Pack, steps: int, clock: Callable[[], float]) -> float:
    start = clock()
    pack.train(steps)
    return (clock() - start) / steps


def _seconds_to_validate(pack: Pack, most: int) -> float:
    """Of all lanes, by those of a few: a grid of averages under many conditions takes minutes for a wide pack."""
    lanes = list(pack.running)
    few = lanes[:most]
    pack.evaluate(few)  # records the validation
    start = time.perf_counter()
    pack.evaluate(few)
    return (time.perf_counter() - start) * len(lanes) / len(few)


def _make_pack_of_copies(trial: Trial, width: int, device: str) -> Pack:
    """A pack that never reports."""
    config = {**trial.config, "training": {**trial.config["training"], "steps": 10**9, "validate_every": 10**9}}
    copies = [dataclasses.replace(trial, number=n, seed=n, config=config, lineage=()) for n in range(width)]
    pack = Pack(copies[0], width=width, device=device)
    pack.fill(copies)
    return pack
