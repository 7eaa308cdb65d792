"""The evaluation of a pack: every variant of trials' parameters, on every set, by every model.

A model that computes its own gradient computes its own outputs, too, lane by lane. All else is
traced. Legend: L lanes, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from spaces.records import Metric
from workers.data.tasks import Batch
from workers.engine.native_architecture import find_obstacle as find_learning_obstacle
from workers.engine.native_architecture import learned_by, models_of
from workers.engine.pack.lane_tensors import LaneTensors
from workers.networks.gradients.native_models import NativeModel, native_model
from workers.networks.gradients.native_models import find_obstacle as find_native_obstacle
from workers.numerics.layout import Layout
from workers.numerics.tracing import Traced
from workers.training.averaging import RAW
from workers.training.recipe import (
    BoundRecipe,
    Recipe,
    average,
    evaluate,
    evaluation_keys,
    metrics_key,
    summarise,
    update_key,
)

LEAST_POSITIONS = 1 << 13
"""Positions evaluated together, even if a training batch has fewer, for longer inputs."""


def describe_evaluation(config: Mapping[str, Any], device: str) -> str:
    """Describe how such trials are evaluated on this device: `native`, or `traced` and why."""
    recipe = Recipe.of(config).pad()
    reasons = {label: find_obstacle(recipe, label, torch.device(device)) for label in recipe.model.evaluations()}
    obstacles = [f"{label}: {why}" if label else why for label, why in reasons.items() if why]
    return f"traced: {'; '.join(dict.fromkeys(obstacles))}" if obstacles else "native"


def find_obstacle(recipe: Recipe, label: str, device: torch.device) -> str | None:
    """Return why this evaluation of the recipe's model is traced here; None if it is native."""
    if reason := find_learning_obstacle(recipe):
        return reason
    if recipe.training.diagnostics:
        return "diagnostics read attention weights"
    return find_native_obstacle(recipe.model.evaluations()[label], recipe.task, recipe.dtype, device)


EvaluateLanes = Callable[[Batch, Tensor, Batch, int], dict[str, Tensor]]
"""Takes knobs, parameters [L, P], sets [L, N, ...] and the number of lanes before copies of the first.

Returns metric -> values [L, N].
"""


@final
class NativeEvaluation:
    """Outputs by the model's own code, lane by lane, and their metrics, which are traced."""

    def __init__(self, recipe: Recipe, label: str, computed: NativeModel, device: torch.device) -> None:
        evaluated = replace(recipe, model=recipe.model.evaluations()[label])
        self._bound, self._label, self._outputs = BoundRecipe(recipe), label, learned_by(evaluated, computed).outputs
        self._models = models_of(recipe.learning)
        task = recipe.task
        stacked = vmap(lambda knobs, outputs, batch: plugins.bind(task, knobs, "task").metrics(outputs, batch))
        self._metrics = Traced(("metrics", metrics_key(recipe), str(device)), stacked)

    def __call__(self, knobs: Batch, flat: Tensor, batch: Batch, used: int, /) -> dict[str, Tensor]:
        recipe = self._bound.of(knobs, used)
        model, whole = recipe.model.evaluations()[self._label], len(flat)
        outputs = self._outputs(model, recipe.task, flat[:used], {name: rows[:used] for name, rows in batch.items()})
        if used < whole:  # the recording of the metrics is of all lanes
            outputs = torch.cat([outputs, outputs[:1].expand(whole - used, *outputs.shape[1:])])
        task_knobs = {path: values for path, values in knobs.items() if path.startswith("task.")}
        if self._models == 1:
            return self._metrics(task_knobs, outputs, batch)
        batch = {name: tensor.repeat(1, self._models, *[1] * (tensor.dim() - 2)) for name, tensor in batch.items()}
        metrics = self._metrics(task_knobs, outputs, batch)
        return {name: values.unflatten(1, (self._models, -1)).mean(1) for name, values in metrics.items()}


@final
class Evaluation:
    """Evaluates lanes of one structure, each with its own knobs, state and sets."""

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        self._recipe = recipe
        self._layout = layout
        self._device = device
        stacked = vmap(lambda knobs, state, index: average(recipe.bind(knobs), state, index), (0, 0, None))
        self._average = Traced(("average", update_key(recipe), str(device)), stacked)
        keys = evaluation_keys(recipe)
        self._evaluations = {label: self._evaluation(label, key) for label, key in keys.items()}

    def _evaluation(self, label: str, key: str) -> EvaluateLanes:
        """Return the fastest evaluation with this label's model; traced ones share recordings."""
        recipe, device = self._recipe, self._device
        if find_obstacle(recipe, label, device) is None:
            computed = native_model(recipe.model.evaluations()[label], recipe.task, recipe.dtype, device)
            assert computed, "there is no obstacle"
            return NativeEvaluation(recipe, label, computed, device)

        def evaluate_one(knobs: Batch, flat: Tensor, batch: Batch) -> dict[str, Tensor]:
            bound = recipe.bind(knobs)
            return evaluate(bound, self._layout, bound.model.evaluations()[label], flat, batch)

        traced = Traced(("evaluate", label, key, str(device)), vmap(evaluate_one))
        return lambda knobs, flat, batch, _: traced(knobs, flat, batch)

    def metrics(
        self, tensors: LaneTensors, sets: Mapping[str, Batch], recipes: Sequence[Recipe]
    ) -> list[tuple[Metric, ...]]:
        """Return metrics of the trials of these recipes, by condition; the validation set has none.

        They are in the first lanes; the other lanes are copies of the first, with its sets.
        """
        # What a trial's own knobs say, as by `Task.summary`, is not the pack's, which has another trial's.
        variants = [(RAW, *recipe.averaging.variants) for recipe in recipes]
        lanes: list[list[Metric]] = [[] for _ in recipes]
        for index, flat in enumerate(self.variants(tensors)):
            for (condition, whole), (label, evaluated) in itertools.product(sets.items(), self._evaluations.items()):
                columns = self._means(evaluated, tensors.knobs, flat, whole, len(recipes))
                for metrics, recipe, own, means in zip(lanes, recipes, variants, columns, strict=True):
                    where = " ".join(filter(None, (condition, label, own[index].condition)))
                    values = summarise(recipe, means).items()
                    metrics += (Metric(name, own[index].name, where, value) for name, value in values)
        return [tuple(metrics) for metrics in lanes]

    def variants(self, tensors: LaneTensors) -> Iterator[Tensor]:
        """Yield the parameters [L, P] of each variant in turn, as grids have a hundred; RAW is first."""
        yield tensors.state.parameters
        for index in range(len(self._recipe.averaging.variants)):
            yield self._average(tensors.knobs, tensors.state, torch.tensor(index, device=self._device))

    def _means(
        self, evaluated: EvaluateLanes, knobs: Batch, flat: Tensor, whole: Batch, used: int
    ) -> list[dict[str, float]]:
        """Return the means over a set's sequences of the metrics of each lane in use."""
        count, length = whole["inputs"].shape[1:3]
        # Chunks need no more memory than a training batch, or longer inputs would exhaust it in a
        # pack of the right width. Groups of sequences that belong together stay in one chunk.
        batch, together = self._recipe.training.batch, self._recipe.task.evaluated_together
        size = max(together, min(batch, max(batch * self._recipe.task.context, LEAST_POSITIONS) // length))
        size -= size % together
        sums: dict[str, Tensor] = {}
        for start in range(0, count, size):
            chunk = {name: tensor[:, start : start + size].contiguous() for name, tensor in whole.items()}
            for name, values in evaluated(knobs, flat, chunk, used).items():
                sums[name] = sums.get(name, 0) + values.double().sum(-1)
        columns = {name: (total[:used] / count).tolist() for name, total in sums.items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
