"""The data of a trial whose task draws on more than random numbers, as arrays for a script.

Always the sets that the trial is evaluated on; of a corpus the tokens of its parts, of a pool of
games the games, else the batches of all steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spaces.errors import StudyError
from spaces.records import Trial
from workers.data.othello.games import pool
from workers.data.splits import Split
from workers.data.tasks import Batch, Task
from workers.data.tasks._language import LanguageTask
from workers.data.tasks.clrs_text import ClrsText
from workers.data.tasks.othello import Othello
from workers.engine.pack.lane_data import draw_sets_of
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.engine.pack.lineage import line_of_descent
from workers.training.recipe import Recipe

Arrays = dict[str, NDArray[Any]]

LARGEST = 1 << 30
"""Most bytes of the batches of all steps."""

_CPU = torch.device("cpu")


def record_data(trial: Trial, steps: int) -> Arrays:
    """Return the arrays that a script reads up to this step; none if it draws its data.

    Raises StudyError if batches are too large, or the trial learns in another way than `weights`.
    """
    recipe = Recipe.of(trial.config)
    task, training = recipe.task, recipe.training
    if not isinstance(task, LanguageTask | ClrsText | Othello):
        return {}
    sets = {
        f"{condition or 'validation'}/{name}": _shrink(tensor)
        for condition, batch in draw_sets_of(recipe, evaluation_seed_of(trial)).items()
        for name, tensor in batch.items()
    }
    if isinstance(task, LanguageTask):
        parts = {split.value: task.tokenised.part(split, _CPU).numpy() for split in Split}
        numbers = {"end": np.array(task.tokenised.end), "rows of a pair": np.array(task.evaluated_together)}
        return {**parts, **numbers, **sets}
    if isinstance(task, Othello) and task.games:
        return {"pool": pool(task.games, _CPU).numpy(), **sets}
    if not recipe.learning.is_plain:
        raise StudyError("its batches are not those of one model, so that no file can hold them step by step")
    return {**_draw_batches(trial, task, training.batch, steps), **sets}


def _draw_batches(trial: Trial, task: Task, count: int, steps: int) -> Arrays:
    """Draw each step's batch of the trial trained then, as `batches/NAME` [steps, N, ...]."""
    rows: dict[str, list[NDArray[Any]]] = {}
    stages = line_of_descent(trial)
    ends = [*(stage.step for stage in stages[1:]), steps]
    for stage, end in zip(stages, ends, strict=True):
        learning, seeds = Recipe.of(stage.trial.config).learning, torch.tensor([stage.trial.seed])
        for step in range(stage.step, end):
            for name, tensor in learning.training(task, seeds, count, torch.tensor([step])).items():
                rows.setdefault(name, []).append(_shrink(tensor[0]))
            size = steps * sum(arrays[0].nbytes for arrays in rows.values())
            if size > LARGEST:
                raise StudyError(
                    f"its {steps:,} batches are {size / 2**30:.1f} GiB, and a script comes with 1 GiB at most"
                )
    return {f"batches/{name}": np.stack(arrays) for name, arrays in rows.items()}


def _shrink(tensor: torch.Tensor) -> NDArray[Any]:
    """Return tokens as bytes, if they fit."""
    array = tensor.numpy()
    small = array.dtype == np.int64 and array.min() >= 0 and array.max() < 256
    return array.astype(np.uint8) if small else array


def read_data(script: str) -> Arrays:
    """Return the arrays of the file beside a script."""
    with np.load(Path(script).with_suffix(".npz")) as file:
        return dict(file)


def read_sets(data: Arrays) -> dict[str, Batch]:
    """Return condition -> set [N, ...]; the validation set has the empty one."""
    sets: dict[str, Batch] = {}
    for key, array in data.items():
        condition, _, name = key.rpartition("/")
        if condition and condition != "batches":
            sets.setdefault("" if condition == "validation" else condition, {})[name] = _widen(array)
    return sets


def read_batch(data: Arrays, step: int) -> Batch:
    """Return the training batch [N, ...] of a step, if those of all steps are there."""
    rows = {key: array[step] for key, array in data.items() if key.startswith("batches/")}
    return {key.removeprefix("batches/"): _widen(row) for key, row in rows.items()}


def _widen(array: NDArray[Any]) -> torch.Tensor:
    """Return tokens as int64, all else unchanged."""
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.uint8 else array)
