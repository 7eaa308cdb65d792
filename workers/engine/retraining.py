"""One trial trained again, alone: its numbers do not depend on where it trained before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.records import Report, Trial
from workers.data.tasks import Batch
from workers.engine.machine.process import prepare
from workers.engine.pack import CHECK_STEPS, Pack
from workers.engine.pack.lane_data import draw_sets_of
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.engine.pack.lanes import NARROWEST
from workers.networks.models import Attention
from workers.networks.scorers import scaled_logits
from workers.numerics.temperature import BestTemperatures, best_temperatures, fit_temperature
from workers.training.recipe import Recipe

Watch = Callable[[int], None]
"""Called with the step reached, at least every CHECK_STEPS steps."""


def retrain(trial: Trial, *, steps: int, device: str, watch: Watch) -> list[Report]:
    """Train a trial alone for `steps` steps, or to its end, and return its reports in order."""
    return _train_alone(trial, steps, device, watch)[1]


def weights(trial: Trial, *, variant: str, steps: int, device: str, watch: Watch) -> dict[str, np.ndarray]:
    """Return a variant's parameters (`raw`, `bema kappa=0.3 eta=0.1`) after `steps` steps."""
    pack, _ = _train_alone(trial, steps, device, watch)
    return {name: tensor.cpu().numpy() for name, tensor in pack.parameters_by_variant(0, trial)[variant].items()}


def refit_temperature(
    trial: Trial, *, condition: str, steps: int, device: str, watch: Watch
) -> tuple[dict[str, float], BestTemperatures]:
    """Fit coefficients a4 .. a0 of adaptive temperature to the last layer (paper 001, App. F).

    All heads count together, on the validation set or that of a condition. Returns them with what
    they are fitted to. Raises StudyError if the trial is several models, the task does not say
    which item is to be found, the model shows no attention, or too few queries miss.
    """
    recipe = Recipe.of(trial.config)
    check_single_model(recipe, trial.number)
    batch = _batch_to_fit(trial, recipe, condition)
    pack, _ = _train_alone(trial, steps, device, watch)
    named = {name: tensor.cpu() for name, tensor in pack.parameters_by_variant(0, trial)["raw"].items()}
    layers = recipe.model.attention(named, batch)
    if not layers:
        raise StudyError("the model shows no attention")
    logits = _logits_where_asked(layers[-1], batch)
    target = batch["relevant"].int().argmax(-1)[:, None].expand(logits.shape[:-1])
    try:
        best = best_temperatures(logits.flatten(0, 1), target.flatten())
        return fit_temperature(best), best
    except ValueError as error:
        raise StudyError(str(error)) from error


def check_single_model(recipe: Recipe, number: int) -> None:
    """Raise StudyError if the trial with this number trains several models together."""
    if not recipe.learning.is_plain:
        learning = plugins.name_of(recipe.learning)
        raise StudyError(f"trial {number} has learning {learning}: it is several models")


def _batch_to_fit(trial: Trial, recipe: Recipe, condition: str) -> Batch:
    """Return the trial's evaluation set with this condition; raises StudyError if it has no `relevant`."""
    sets = draw_sets_of(recipe, evaluation_seed_of(trial))
    if condition not in sets:
        raise StudyError(f"--condition: {no_such('condition of this task', condition, filter(None, sets))}")
    batch = sets[condition]
    if "relevant" not in batch:
        raise StudyError(
            f"the task {plugins.name_of(recipe.task)!r} does not say which item is to be found; choose one whose "
            "batches have `relevant`"
        )
    return batch


def _logits_where_asked(layer: Attention, batch: Batch) -> Tensor:
    """Return the scaled logits [N, h, k] of the query that asks in each sequence, -inf where invisible.

    That query is the first `wanted` one, as padding follows shorter sequences, or the last one in
    sets without `wanted`.
    """
    logits = scaled_logits(layer.query, layer.key)  # [N, h, q, k]
    logits = logits if layer.bias is None else logits + layer.bias
    logits = logits.masked_fill(~layer.visible, -torch.inf)
    if "wanted" not in batch:
        return logits[..., -1, :]
    return logits[torch.arange(len(logits)), :, batch["wanted"].int().argmax(-1)]


def _train_alone(trial: Trial, steps: int, device: str, watch: Watch) -> tuple[Pack, list[Report]]:
    """Train the trial in lane 0 of a pack of its own."""
    prepare()
    pack = Pack(trial, width=NARROWEST, device=device)
    pack.fill([trial])
    reports: list[Report] = []
    made = 0
    while pack.running and made < steps:
        reports += pack.train(min(CHECK_STEPS, steps - made))
        made += pack.take_counts()[0]
        watch(made)
    return pack, reports
