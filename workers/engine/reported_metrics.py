"""The metrics that a trial reports, found by an evaluation of two sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spaces.records import Trial
from workers.data.tasks import Batch
from workers.numerics.layout import Layout
from workers.training.averaging import RAW
from workers.training.recipe import Recipe, evaluate, evaluation_sets, summarise

LARGEST_EVALUATED = 300_000_000
"""Most multiplications, about, of an evaluation with numbers, which takes a tenth of a second."""


def variants_of(config: Mapping[str, Any]) -> list[str]:
    """Return the variants of its parameters that a trial is evaluated with."""
    return [variant.name for variant in (RAW, *Recipe.of(config).averaging.variants)]


def reported_metrics(trial: Trial) -> list[tuple[str, str, str]]:
    """Return name, variant and condition of all that a trial reports each time.

    Found by an evaluation on sets of two sequences, of one layer if layers are alike. A large
    model's tensors have shapes and no numbers; a small one's have, as torch takes a second of
    processor time to get ready for shapes alone.
    """
    recipe = Recipe.of(trial.config)
    if not recipe.training.diagnostics:  # which may be of each layer
        recipe = replace(recipe, model=recipe.model.sketch())
    seeds = torch.tensor([trial.seed])
    sets = evaluation_sets(recipe.task, seeds, 2)
    variants = [RAW, *recipe.averaging.variants]
    metrics = [("loss", "raw", "")]
    alike: dict[frozenset[str], Batch] = {}  # equal names of tensors, equal metrics
    for whole in sets.values():
        alike.setdefault(frozenset(whole), whole)
    trained = recipe.learning.parameters(recipe.model.parameters(recipe.task))  # reads a spline's knots
    layout = partial(Layout.of, trained, recipe.dtype, "cpu")
    parameters = sum(math.prod(parameter.shape) for parameter in trained.values())
    positions = max(tensor[0].numel() for batch in alike.values() for tensor in batch.values())
    if positions * (parameters + positions) <= LARGEST_EVALUATED:
        names = _metric_names(recipe, layout(), seeds, alike, lambda tensor: tensor)
    else:
        from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
                names = _metric_names(recipe, layout(), seeds, alike, shapes.from_tensor)
        except DataDependentOutputException:  # as where a mask decides how attention is computed
            names = _metric_names(recipe, layout(), seeds, alike, lambda tensor: tensor)
    for label, (condition, whole) in itertools.product(recipe.model.evaluations(), sets.items()):
        for name, variant in itertools.product(names[label, frozenset(whole)], variants):
            metrics.append((name, variant.name, " ".join(filter(None, (condition, label, variant.condition)))))
    return metrics


def _metric_names(
    recipe: Recipe,
    layout: Layout,
    seeds: Tensor,
    alike: Mapping[frozenset[str], Batch],
    change: Callable[[Tensor], Tensor],
) -> dict[tuple[str, frozenset[str]], Iterable[str]]:
    """Return each evaluation model's metrics on each kind of set; `change` makes the tensors."""
    names: dict[tuple[str, frozenset[str]], Iterable[str]] = {}
    parameters = layout.initial(change(seeds))[0].to(recipe.dtype)
    for (label, model), (kind, whole) in itertools.product(recipe.model.evaluations().items(), alike.items()):
        few = {name: tensor[0, : max(2, recipe.task.evaluated_together)] for name, tensor in whole.items()}
        batch: Batch = {name: change(tensor.contiguous()) for name, tensor in few.items()}
        metrics = evaluate(recipe, layout, model, parameters, batch)
        names[label, kind] = summarise(recipe, dict.fromkeys(metrics, 1.0))
    return names
