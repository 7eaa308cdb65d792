"""The commands weights and refit: train a stored trial again, and write or use what it learned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, OptionError, Storage, Study, known_format, storage_url
from cli.restoring import Device, known, place_of, training_bar
from cli.tables import show_text
from graft.placement import check_device
from spaces.errors import StudyError
from spaces.records import Trial
from storage.frames import open_reader

FORMATS = ("safetensors", "gpt2")


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    app.command()(weights)
    app.command()(refit)


def weights(
    study: Study,
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to: a file, for --format gpt2 a folder.", show_default=False)
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            callback=known_format(FORMATS),
            help="gpt2: a folder for Hugging Face transformers (GPT2LMHeadModel), where the architecture allows it.",
        ),
    ] = "safetensors",
    variant: Annotated[
        str, typer.Option(help="raw, or an average of the trial: ema, bema, of a grid 'bema kappa=0.5 eta=0.2'.")
    ] = "raw",
    storage: Storage = None,
    device: Device = None,
    force: Force = False,
) -> None:
    """Train a trial again, as far as it was trained, and write its weights; no study stores them.

    Example: search weights tinystories 4 --variant bema --format gpt2 -o tiny-gpt2
    """
    from workers.engine.exporting import check_gpt2, check_package, check_variant, write_gpt2, write_safetensors
    from workers.engine.replay import weights as retrained

    _check_place(output, form, force)
    trial, steps, place = _stored(study, number, storage, device)
    check_variant(trial.config, variant)
    check_package()
    if form == "gpt2":
        check_gpt2(trial.config)
    with training_bar(number, steps) as watch:
        learned = retrained(trial, variant=variant, steps=steps, device=place, watch=watch)
    if form == "gpt2":
        write_gpt2(output, trial.config, learned)
    else:
        write_safetensors(output, learned)
    count = sum(array.size for array in learned.values())
    show_text(f"{output}: {count:,} parameters of trial {number} after step {steps:,}, {variant}")


def refit(
    study: Study,
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    condition: Annotated[str, typer.Option(help="A condition's set in place of the validation set: 'items=64'.")] = "",
    storage: Storage = None,
    device: Device = None,
) -> None:
    """Train a trial again and fit adaptive temperature's polynomial to its attention; prints the scorer for a space.

    Example: search refit quick-max-retrieval 0 --condition items=256
    """
    from workers.engine.replay import refit_temperature

    trial, steps, place = _stored(study, number, storage, device)
    with training_bar(number, steps) as watch:
        found = refit_temperature(trial, condition=condition, steps=steps, device=place, watch=watch)
    show_text("adaptive_temperature: {" + ", ".join(f"{name}: {value:.6g}" for name, value in found.items()) + "}")


def _stored(study: str, number: int, storage: str | None, device: str | None) -> tuple[Trial, int, str]:
    """A trial, how far it was trained, and where to train it again."""
    if device:
        check_device(device)
    with open_reader(storage_url(storage)) as reader:
        _, [found] = known(reader, study, [number])
    if not found.steps:
        raise StudyError(f"trial {number} of {study} ({found.row['state']}) has not been trained yet")
    return found.trial, found.steps, place_of(found, device)


def _check_place(output: Path, form: str, force: bool) -> None:
    """Raise OptionError if nothing can be written there, before a trial is trained for it."""
    if output.exists() and not force:
        raise OptionError(f"--output: {output} exists; name another or add --force")
    if form == "gpt2" and output.exists() and not output.is_dir():
        raise OptionError(f"--output: {output} is a file; --format gpt2 writes a folder")
    if form != "gpt2" and output.is_dir():
        raise OptionError(f"--output: {output} is a folder; --format {form} writes a file")
    if not output.absolute().parent.is_dir():
        raise OptionError(f"--output: {output}: there is no folder {output.parent}")
