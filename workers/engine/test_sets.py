"""The share of a trial's test set that its validation shows."""

from __future__ import annotations

import torch

from spaces.records import Trial
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.numerics.randomness import Purpose
from workers.training.recipe import Recipe, evaluation_sets


def share_seen(trial: Trial) -> float | None:
    """Return the share of test sequences that are in validation, too; None for windows of text."""
    recipe = Recipe.of(trial.config)
    if not recipe.task.has_identities:
        return None
    seeds, count = torch.tensor([evaluation_seed_of(trial)]), recipe.training.validation_batch
    sets: list[set[tuple[int, ...]]] = []
    for purpose in (Purpose.VALIDATION_DATA, Purpose.TEST_DATA):
        batch = evaluation_sets(recipe.task, seeds, count, purpose)[""]
        sets.append(set(map(tuple, recipe.task.identity(batch)[0].tolist())))
    shown, test = sets
    return len(test & shown) / len(test)
