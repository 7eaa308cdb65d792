"""Trains a stored trial again for its weights, its model or its refitted scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from graft.files import writing
from graft.machine.devices import check_device
from graft.retraining.restored import RestoredTrial, restore_trials
from spaces.errors import StudyError
from spaces.plugins.active import using
from storage.frames import open_reader

if TYPE_CHECKING:
    from workers.engine.trained_model import TrainedModel
    from workers.numerics.temperature import BestTemperatures

WeightsFormat = Literal["safetensors", "gpt2"]


def restore_trained(
    url: str, study: str, number: int, device: str | None, *, accept_changes: bool = False
) -> RestoredTrial:
    """Return a stored trial that has been trained for a step at least, after checking `device`.

    Raises StudyError for one that has no step, or other data without `accept_changes`.
    """
    if device:
        check_device(device)
    with open_reader(url) as reader:
        [restored] = restore_trials(reader, study, [number], accept_changes=accept_changes)
    if not restored.steps:
        raise StudyError(f"trial {number} of {study} ({restored.row['state']}) has not been trained yet")
    return restored


def check_weights(restored: RestoredTrial, variant: str, form: WeightsFormat) -> None:
    """Raise an error if the trial has no such variant or cannot be written as `form`."""
    from workers.engine.exporting import check_gpt2, check_package, check_variant

    check_package()
    with using(restored.outside):
        check_variant(restored.trial.config, variant)
        if form == "gpt2":
            check_gpt2(restored.trial.config)


def write_weights(
    restored: RestoredTrial,
    output: Path,
    *,
    variant: str,
    form: WeightsFormat,
    device: str | None,
    watch: Callable[[int], None],
) -> int:
    """Train a trial again, write its weights to a folder (`gpt2`) or a file, and count them."""
    from workers.engine.exporting import write_gpt2, write_safetensors
    from workers.engine.retraining import weights

    trial, where = restored.trial, restored.device(device)
    with restored.as_it_was_trained():
        learned = weights(trial, variant=variant, steps=restored.steps, device=where, watch=watch)
        with writing(output):
            if form == "gpt2":
                write_gpt2(output, trial.config, learned)
            else:
                write_safetensors(output, learned)
    return sum(array.size for array in learned.values())


def train_model(
    url: str,
    study: str,
    number: int,
    *,
    variant: str | None,
    step: int | None,
    device: str | None,
    accept_changes: bool = False,
) -> TrainedModel:
    """Train a trial again up to a step (None: its last one) and return it as a torch module.

    `variant` None stands for the objective's. Raises as `restore_trained` and `check_weights`, and
    StudyError for a step beyond its last one.
    """
    from workers.engine.exporting import check_variant, variant_of
    from workers.engine.retraining import weights
    from workers.engine.trained_model import trained_model

    restored = restore_trained(url, study, number, device, accept_changes=accept_changes)
    steps = restored.steps if step is None else step
    if not 0 < steps <= restored.steps:
        raise StudyError(f"step: {step} must be 1 to {restored.steps:,}, as far as trial {number} was trained")
    trial, where = restored.trial, restored.device(device)
    with restored.as_it_was_trained():
        variant = variant or variant_of(restored.objective, trial.config)
        check_variant(trial.config, variant)
        learned = weights(trial, variant=variant, steps=steps, device=where, watch=lambda _: None)
        return trained_model(trial, learned)


def refit_scorer(
    restored: RestoredTrial, condition: str, device: str | None, watch: Callable[[int], None]
) -> tuple[Mapping[str, float], BestTemperatures]:
    """Train a trial again and fit adaptive temperature; return its fields and the fitted points."""
    from workers.engine.retraining import refit_temperature

    with restored.as_it_was_trained():
        return refit_temperature(
            restored.trial,
            condition=condition,
            steps=restored.steps,
            device=restored.device(device),
            watch=watch,
        )
