"""How the trials of a pack are judged: every variant of their parameters, on every set, in every way of evaluation.

Legend: L lanes, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from spaces.records import Metric
from workers.data.tasks import Batch
from workers.numerics.layout import Layout
from workers.numerics.tracing import Traced
from workers.training.averaging import RAW, Variant
from workers.training.recipe import Recipe, State, averaged, judged, judging_keys, update_key

LEAST_JUDGED = 1 << 13
"""Positions that are judged together however few a training batch has: where validation has longer inputs."""


class Judging:
    """Judges lanes of one structure, each with its own knobs, state and sets."""

    def __init__(self, recipe: Recipe, layout: Layout, device: str) -> None:
        self._recipe = recipe
        self._layout = layout
        self._device = torch.device(device)
        self._average = Traced(("average", update_key(recipe), device), vmap(self._averaged, (0, 0, None)))
        self._judges = {
            label: Traced(("judge", label, key, device), vmap(partial(self._judged, label)))
            for label, key in judging_keys(recipe).items()
        }

    def metrics(self, knobs: Batch, state: State, sets: Mapping[str, Batch]) -> list[tuple[Metric, ...]]:
        """Metrics of each lane on its sets, by condition; under the empty one the validation set."""
        found: list[list[Metric]] = [[] for _ in state.step]
        for variant, flat in self.variants(knobs, state):
            for (condition, whole), (label, judge) in itertools.product(sets.items(), self._judges.items()):
                where = " ".join(filter(None, (condition, label, variant.condition)))
                for metrics, means in zip(found, self._means(judge, knobs, flat, whole), strict=True):
                    metrics += (Metric(name, variant.name, where, mean) for name, mean in means.items())
        return [tuple(metrics) for metrics in found]

    def variants(self, knobs: Batch, state: State) -> Iterator[tuple[Variant, Tensor]]:
        """The parameters [L, P] to validate, one variant after the other."""
        yield RAW, state.parameters
        for index, variant in enumerate(self._recipe.averaging.variants):
            yield variant, self._average(knobs, state, torch.tensor(index, device=self._device))

    def _means(self, judge: Traced, knobs: Batch, flat: Tensor, whole: Batch) -> list[Mapping[str, float]]:
        """For each lane what is reported of a set: of each metric's mean, judged in chunks of limited length."""
        count, length = whole["inputs"].shape[1:3]
        batch, together = self._recipe.training.batch, self._recipe.task.judged_together
        size = max(together, min(batch, max(batch * self._recipe.task.context, LEAST_JUDGED) // length))
        size -= size % together
        sums: dict[str, Tensor] = {}
        for start in range(0, count, size):
            chunk = {name: tensor[:, start : start + size].contiguous() for name, tensor in whole.items()}
            for name, values in judge(knobs, flat, chunk).items():
                sums[name] = sums.get(name, 0) + values.double().sum(-1)
        columns = {name: (total / count).tolist() for name, total in sums.items()}
        lanes = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [self._recipe.task.summary(means) for means in lanes]

    def _averaged(self, knobs: Batch, state: State, index: Tensor) -> Tensor:
        return averaged(self._recipe.bind(knobs), state, index)

    def _judged(self, label: str, knobs: Batch, flat: Tensor, batch: Batch) -> dict[str, Tensor]:
        recipe = self._recipe.bind(knobs)
        return judged(recipe, self._layout, recipe.model.evaluations()[label], flat, batch)
