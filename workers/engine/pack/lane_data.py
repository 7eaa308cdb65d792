"""The data of a pack's lanes, by task, knobs, seed and step. Legend: L lanes, N sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spaces import plugins
from workers.data.tasks import Batch, Task
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import LaneTrial
from workers.numerics.randomness import Purpose
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, evaluation_sets

Rows = slice | Tensor
"""The indices of some lanes."""


def draw_training_batches(
    recipe: Recipe, lanes: Sequence[LaneTrial | None], tensors: LaneTensors, steps: int = 1
) -> list[Batch]:
    """Draw the batches [L, N, ...] of the next steps of these lanes; the pack's trials share `recipe`.

    A lane's batch is a function of its task, knobs, seed and step. So further steps are drawn as if
    they were further lanes, and 8 of a narrow pack take hardly longer together than one.
    """
    knobs = {path: values for path, values in tensors.knobs.items() if path.startswith(("task.", "learning."))}
    seeds, at = tensors.seeds, tensors.state.step
    if steps > 1:
        knobs = {path: values.repeat(steps) for path, values in knobs.items()}
        seeds, at = seeds.repeat(steps), (at + torch.arange(steps, device=at.device)[:, None]).flatten()

    def draw(task: Task, rows: Rows) -> Batch:
        row_knobs = {path: values[rows] for path, values in knobs.items()}
        learning, task = plugins.bind(recipe.learning, row_knobs, "learning"), plugins.bind(task, row_knobs, "task")
        return learning.training(task, seeds[rows], recipe.training.batch, at[rows])

    drawn = _draw_by_task(recipe, [*lanes] * steps, tensors, draw)
    chunks = {name: tensor.chunk(steps) for name, tensor in drawn.items()}
    return [{name: chunk[step] for name, chunk in chunks.items()} for step in range(steps)]


def draw_evaluation_sets(
    recipe: Recipe,
    lanes: Sequence[LaneTrial | None],
    tensors: LaneTensors,
    purpose: Purpose = Purpose.VALIDATION_DATA,
) -> dict[str, Batch]:
    """Return condition -> set [L, N, ...], for validation or a test; the unshifted one has none."""

    def draw(task: Task, rows: Rows) -> dict[str, Batch]:
        knobs = {path: values[rows] for path, values in tensors.knobs.items()}
        task = plugins.bind(task, knobs, "task")
        return evaluation_sets(task, tensors.evaluation_seeds[rows], recipe.training.validation_batch, purpose)

    return _draw_by_task(recipe, lanes, tensors, draw)


def draw_sets_of(recipe: Recipe, seed: int) -> dict[str, Batch]:
    """Return the sets [N, ...] of a trial with this seed by condition; validation's is empty."""
    sets = evaluation_sets(recipe.task, torch.tensor([seed]), recipe.training.validation_batch)
    return {condition: {name: tensor[0] for name, tensor in whole.items()} for condition, whole in sets.items()}


def _draw_by_task(
    recipe: Recipe, lanes: Sequence[LaneTrial | None], tensors: LaneTensors, draw: Callable[[Task, Rows], Any]
) -> Any:
    """Draw for each lane by the lane's own task: nested tensors [L, ...].

    Lanes of one structure may have tasks that differ in their data (`Task.kin`). The lanes of each
    task are then drawn together, and put back in order.
    """
    if not recipe.task.kin():
        return draw(recipe.task, slice(None))
    by_task: dict[str, tuple[Task, list[int]]] = {}
    for row, running in enumerate(lanes):
        task = running.recipe.task if running else recipe.task
        by_task.setdefault(plugins.name_of(task), (task, []))[1].append(row)
    if len(by_task) == 1:
        [(task, _)] = by_task.values()
        return draw(task, slice(None))
    rows = [torch.tensor(indices, device=tensors.seeds.device) for _, indices in by_task.values()]
    parts = [draw(task, index) for (task, _), index in zip(by_task.values(), rows, strict=True)]
    order = torch.cat(rows).argsort()
    return tree_map(lambda *pieces: torch.cat(pieces)[order], *parts)
