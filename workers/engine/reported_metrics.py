"""The metrics that a trial reports, found by an evaluation of two sequences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spaces.records import Trial
from workers.data.tasks import Batch
from workers.numerics.layout import Layout
from workers.training.averaging import RAW
from workers.training.recipe import Recipe, evaluate, evaluation_sets

_Names = dict[tuple[str, frozenset[str]], Iterable[str]]
"""(the evaluation model's label, the keys of a set) -> the names of metrics."""
LARGEST_EVALUATED = 300_000_000
"""Multiplications, about, of an evaluation that is made to see what it reports; a tenth of a second."""


def variants_of(config: Mapping[str, Any]) -> list[str]:
    """Return the variants of its parameters that a trial is evaluated with."""
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
    trained = recipe.learning.parameters(recipe.model.parameters(recipe.task))  # read numbers: a spline's first knots
    layout = partial(Layout.of, trained, recipe.dtype, "cpu")
    parameters = sum(math.prod(parameter.shape) for parameter in trained.values())
    positions = max(tensor[0].numel() for batch in alike.values() for tensor in batch.values())
    if positions * (parameters + positions) <= LARGEST_EVALUATED:
        names = _metric_names(recipe, layout(), seeds, alike, lambda tensor: tensor)
    else:
        names = _find_by_shapes(recipe, layout, seeds, alike)
    for label, (condition, whole) in itertools.product(recipe.model.evaluations(), sets.items()):
        for name, variant in itertools.product(names[label, frozenset(whole)], variants):
            found.append((name, variant.name, " ".join(filter(None, (condition, label, variant.condition)))))
    return found


def _find_by_shapes(
    recipe: Recipe, layout: Callable[[], Layout], seeds: Tensor, alike: Mapping[frozenset[str], Batch]
) -> _Names:
    """Return the metrics of each evaluation model on each kind of set, found with tensors without numbers.

    Tensors on torch's device `meta` take half of the time that `FakeTensorMode` takes. A model that makes tensors of
    its own on another device, or reads a number, cannot use them.
    """
    try:
        with torch.device("meta"):
            return _metric_names(recipe, layout(), seeds, alike, lambda tensor: tensor.to("meta"))
    except Exception:  # an error of the model's own is raised again below
        from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as shapes:
            return _metric_names(recipe, layout(), seeds, alike, shapes.from_tensor)
    except DataDependentOutputException:  # as where a mask decides how attention is computed
        return _metric_names(recipe, layout(), seeds, alike, lambda tensor: tensor)


def _metric_names(
    recipe: Recipe,
    layout: Layout,
    seeds: Tensor,
    alike: Mapping[frozenset[str], Batch],
    change: Callable[[Tensor], Tensor],
) -> _Names:
    """Return the metrics of each evaluation model on each kind of set; `change` makes the tensors that it is found
    with.
    """
    names: _Names = {}
    parameters = layout.initial(change(seeds))[0].to(recipe.dtype)
    for (label, model), (kind, whole) in itertools.product(recipe.model.evaluations().items(), alike.items()):
        few = {name: tensor[0, : max(2, recipe.task.evaluated_together)] for name, tensor in whole.items()}
        batch: Batch = {name: change(tensor.contiguous()) for name, tensor in few.items()}
        metrics = evaluate(recipe, layout, model, parameters, batch)
        names[label, kind] = recipe.task.summary(dict.fromkeys(metrics, 1.0))
    return names
