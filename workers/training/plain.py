"""One trial trained in plain torch: no lanes, no recordings, no native code, no padding.

It makes the steps of `workers.training.recipe` from the same random numbers as the engine, so that
its metrics are the engine's to rounding. Scripts that stand alone are cut from it
(`graft.exports.scripts`). Legend: N sequences, P parameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.models import Model
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameters
from workers.numerics.randomness import Purpose, Streams, keep_mask
from workers.training.averaging import RAW, Variant
from workers.training.recipe import Recipe, State, advance, average, evaluation_sets, initial_state, layout_of

Key = tuple[int, str, str, str]
"""Step, metric, variant and condition."""
POSITIONS = 1 << 14
"""Most positions that are evaluated together."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A configuration, its seed, and the step at which it ends or the next one takes over."""

    seed: int
    until: int
    recipe: Recipe


class Trained(NamedTuple):
    """The report of a training."""

    metrics: Mapping[Key, float]
    divergence: str | None
    """A description of the divergence; `None` if there was none."""


def train(
    stages: Sequence[Stage], *, evaluation_seed: int, until: int, steps: Collection[int], nudge: int = 0
) -> Trained:
    """Train a trial, after those whose state it took over, and evaluate it at these `steps`.

    The training loss is the mean since the validation before. Diagnostics of attention are left to
    the engine. A `nudge` above 0 moves each parameter of the start by one last bit.
    """
    last, values = stages[-1], dict[Key, float]()
    sets = draw_sets(last, evaluation_seed)
    state = start(stages[0], nudge)
    for stage in stages:
        layout, training = layout_of(stage.recipe), stage.recipe.training
        reported, state = int(state.step), state._replace(loss_sum=torch.zeros_like(state.loss_sum))
        for step in range(reported + 1, min(stage.until, until) + 1):
            state = make_step(stage, layout, state)
            if state.diverged_at:
                return Trained(values, f"the training loss was not finite at step {step}")
            if step % training.validate_every and step != training.steps:
                continue
            if stage is last and step in steps:
                metrics = evaluate(stage, layout, state, sets)
                values |= metrics
                if not all(map(math.isfinite, metrics.values())):
                    return Trained(values, f"a validation metric was not finite at step {step}")
                values[step, "loss", "raw", ""] = float(state.loss_sum) / (step - reported)
            reported, state = step, state._replace(loss_sum=torch.zeros_like(state.loss_sum))
    return Trained(values, None)


def start(stage: Stage, nudge: int = 0) -> State:
    """Return the state before the first step; `nudge` above 0 moves parameters by one last bit."""
    layout = layout_of(stage.recipe)
    flat = layout.initial(torch.tensor([stage.seed]))[0].to(layout.decays.dtype)
    return initial_state(stage.recipe, layout, move_by_a_bit(flat, nudge) if nudge else flat)


def move_by_a_bit(flat: Tensor, nudge: int) -> Tensor:
    """Return parameters [P], each replaced by one of its neighbours, which `nudge` draws."""
    is_up = Streams.of(torch.tensor([nudge]), Purpose.INITIAL, 0).uniform(len(flat))[0] < 0.5
    return flat.nextafter(torch.where(is_up, math.inf, -math.inf).to(flat))


def make_step(stage: Stage, layout: Layout, state: State) -> State:
    """Return the state after one more step, with the resets before it."""
    recipe, step = stage.recipe, int(state.step)
    if recipe.learning.resets_at(step):
        before = state.parameters, state.moments
        parameters, moments = recipe.learning.reset(recipe.optimizer, layout, *before, stage.seed, step)
        state = state._replace(parameters=parameters, moments=moments)
    batch = draw_batch(stage, step)
    masks = draw_masks(stage, step, length=batch["inputs"].shape[1])
    return advance(recipe, layout, state, batch, masks)


def draw_batch(stage: Stage, step: int) -> Batch:
    """Return the training batch [N, ...] of the step that comes after `step` steps."""
    seeds, steps = torch.tensor([stage.seed]), torch.tensor([step])
    recipe = stage.recipe
    return take_lane(recipe.learning.training(recipe.task, seeds, recipe.training.batch, steps))


def draw_sets(stage: Stage, seed: int) -> dict[str, Batch]:
    """Return the sets that the trial is evaluated on by condition; the validation set has none."""
    sets = evaluation_sets(stage.recipe.task, torch.tensor([seed]), stage.recipe.training.validation_batch)
    return {condition: take_lane(batch) for condition, batch in sets.items()}


def take_lane(batch: Batch) -> Batch:
    """Return the tensors of a batch that was drawn for one lane, without the axis of lanes."""
    return {name: tensor[0] for name, tensor in batch.items()}


def draw_masks(stage: Stage, step: int, *, length: int) -> Parameters:
    """Return which values each dropout site in use keeps at a step, for inputs of this length."""
    sites = stage.recipe.model.dropout_sites(stage.recipe.task, stage.recipe.training.batch, length)
    masks = dict[str, Tensor]()
    for index, (name, site) in enumerate(sites.items()):
        if site.rate:
            streams = Streams.of(torch.tensor([stage.seed]), Purpose.DROPOUT, step, index)
            masks[name] = keep_mask(streams, torch.tensor([site.rate]).double(), *site.shape)[0]
    return masks


@torch.no_grad()
def evaluate(stage: Stage, layout: Layout, state: State, sets: Mapping[str, Batch]) -> dict[Key, float]:
    """Return all metrics of the parameters and their averages, on all sets, by all evaluations."""
    metrics, step = dict[Key, float](), int(state.step)
    models = stage.recipe.model.evaluations().items()
    for variant, flat in list_variants(stage.recipe, state):
        for (condition, batch), (label, model) in itertools.product(sets.items(), models):
            where = " ".join(filter(None, (condition, label, variant.condition)))
            for name, mean in mean_metrics(stage.recipe, layout, model, flat, batch).items():
                metrics[step, name, variant.name, where] = mean
    return metrics


def list_variants(recipe: Recipe, state: State) -> Iterator[tuple[Variant, Tensor]]:
    """Yield the parameters [P] and each of their averages."""
    yield RAW, state.parameters
    for index, variant in enumerate(recipe.averaging.variants):
        yield variant, average(recipe, state, torch.tensor(index))


def mean_metrics(recipe: Recipe, layout: Layout, model: Model, flat: Tensor, batch: Batch) -> Mapping[str, float]:
    """Return the metrics of parameters [P] on a set: the task's summary of their means."""
    count, length = batch["inputs"].shape[:2]
    together = recipe.task.evaluated_together
    size = max(1, POSITIONS // length // together) * together
    sums: dict[str, float] = {}
    for first in range(0, count, size):
        part = {name: tensor[first : first + size] for name, tensor in batch.items()}

        def evaluate_model(parameters: Parameters, part: Batch = part) -> dict[str, Tensor]:
            return recipe.task.metrics(model.outputs(parameters, part, {}), part)

        for name, values in recipe.learning.evaluate(layout, flat, evaluate_model).items():
            sums[name] = sums.get(name, 0.0) + float(values.double().sum())
    return recipe.task.summary({name: total / count for name, total in sums.items()})
