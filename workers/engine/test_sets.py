"""Whether a trial's test set is one that its validation does not show."""

from __future__ import annotations

import torch

from spaces.records import Trial
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.numerics.randomness import Purpose
from workers.training.recipe import Recipe, evaluation_sets


def share_seen(trial: Trial) -> float | None:
    """Return which share, 0 to 1, of the sequences of a trial's test set is in its validation set, too.

    None for a task whose sequences are no things of their own, as windows of one text, which may overlap.
    """
    recipe = Recipe.of(trial.config)
    if not recipe.task.has_identities:
        return None
    seeds, count = torch.tensor([evaluation_seed_of(trial)]), recipe.training.validation_batch
    shown, test = (
        {
            tuple(row)
            for row in recipe.task.identity(evaluation_sets(recipe.task, seeds, count, purpose)[""])[0].tolist()
        }
        for purpose in (Purpose.VALIDATION_DATA, Purpose.TEST_DATA)
    )
    return len(test & shown) / len(test)
