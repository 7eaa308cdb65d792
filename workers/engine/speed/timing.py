"""How fast this device trains a given trial, by training it for a moment."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spaces.records import Trial
from workers.data.tasks import Batch
from workers.engine.machine.process import flush_subnormals, use_device
from workers.engine.pack import NARROWEST, Pack
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.stepping import stepper_of
from workers.engine.step import TracedStep, step_of
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.training.averaging import RAW
from workers.training.recipe import Recipe, evaluate, evaluation_sets, layout_of

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

WARM_UP_STEPS = 3
STEPS_BETWEEN_LOOKS = 10
BURST_SECONDS = 0.05
VALIDATED_LANES = 2
"""Whose validation is timed on a CPU, where that of more lanes takes as much longer."""
LARGEST_EVALUATED = 300_000_000
"""Multiplications, about, of an evaluation that is made to see what it reports; a tenth of a second."""


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
    """Return name, variant and condition of what a trial reports each time, of whatever size its model is.

    Found by an evaluation on sets of two sequences. The tensors of a large one have shapes and no numbers; of a small
    one they have, as torch takes a second of processor time to get ready for shapes alone.
    """
    recipe = Recipe.of(trial.config)
    seeds = torch.tensor([trial.seed])
    sets = evaluation_sets(recipe.task, seeds, 2)
    variants = [RAW, *recipe.averaging.variants]
    found = [("loss", "raw", "")]
    alike: dict[frozenset[str], Batch] = {}  # what a task reports of a set follows from what there is in it
    for whole in sets.values():
        alike.setdefault(frozenset(whole), whole)
    names: dict[tuple[str, frozenset[str]], Iterable[str]] = {}
    trained = recipe.learning.parameters(recipe.model.parameters(recipe.task))  # read numbers: a spline's first knots
    together = max(2, recipe.task.evaluated_together)
    few = {
        kind: {name: tensor[0, :together].contiguous() for name, tensor in whole.items()}
        for kind, whole in alike.items()
    }
    with _shapes_alone() if _is_large(trained, few.values()) else nullcontext() as shapes:
        without_numbers = shapes.from_tensor if shapes else _unchanged
        layout = Layout.of(trained, recipe.dtype, "cpu")
        parameters = layout.initial(without_numbers(seeds))[0].to(recipe.dtype)
        for (label, model), (kind, given) in itertools.product(recipe.model.evaluations().items(), few.items()):
            batch: Batch = {name: without_numbers(tensor) for name, tensor in given.items()}
            metrics = evaluate(recipe, layout, model, parameters, batch)
            names[label, kind] = recipe.task.summary(dict.fromkeys(metrics, 1.0))
    for label, (condition, whole) in itertools.product(recipe.model.evaluations(), sets.items()):
        for name, variant in itertools.product(names[label, frozenset(whole)], variants):
            found.append((name, variant.name, " ".join(filter(None, (condition, label, variant.condition)))))
    return found


def _is_large(trained: Mapping[str, Parameter], batches: Iterable[Batch]) -> bool:
    """Return whether an evaluation of these batches takes longer than torch takes to get ready for shapes alone."""
    parameters = sum(math.prod(parameter.shape) for parameter in trained.values())
    positions = max(tensor.numel() for batch in batches for tensor in batch.values())
    return positions * (parameters + positions) > LARGEST_EVALUATED


def _shapes_alone() -> FakeTensorMode:

    return FakeTensorMode(allow_non_fake_inputs=True)


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


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


def step_rate(trial: Trial, *, width: int, device: str, traced: bool, seconds: float = 0.5) -> float:
    """Optimizer steps of single models per second, data included, of `width` copies of a trial; no validation.

    `traced`: by the traced step, also where there is a faster one. The fastest of several bursts, as in `best_rate`.
    """
    where = torch.device(device)
    use_device(where)
    recipe = Recipe.of(trial.config).pad()
    tensors = LaneTensors.of_copies(trial, recipe, layout_of(recipe, where), max(width, NARROWEST), where)
    step = (TracedStep if traced else step_of)(recipe, trial.structure, where)
    advance = stepper_of(recipe, step, where).of([None] * max(width, NARROWEST), tensors)
    on_cpu = where.type == "cpu"
    clock = time.thread_time if on_cpu else time.perf_counter
    synchronise = (lambda: None) if on_cpu else functools.partial(torch.cuda.synchronize, where)

    @flush_subnormals()
    def train(steps: int) -> float:
        """Seconds a step."""
        start = clock()
        made = 0
        while made < steps:
            made += advance(steps - made)
        synchronise()
        return (clock() - start) / steps

    train(1)  # records the step
    fastest = train(1)
    burst = max(1, min(50, int(BURST_SECONDS / fastest)))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        fastest = min(fastest, train(burst))
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
