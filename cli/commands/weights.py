"""The commands weights and refit: train a stored trial again, and write its weights or its fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from cli.options import Force, Number, OptionError, RetrainingOptions, Study, check_format, say_restored
from cli.tables import show_text

if TYPE_CHECKING:
    from graft.retraining.weights import WeightsFormat

FittedCondition = Annotated[
    str, typer.Option("--condition", help="A condition's set in place of the validation set: 'items=64'.")
]
FORMATS = ("safetensors", "gpt2")


@dataclass(frozen=True, kw_only=True)
class WeightsOptions:
    """The parameters of a trial that are written, and their format."""

    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            callback=check_format(FORMATS),
            help="gpt2: a folder for Hugging Face transformers (GPT2LMHeadModel), where the architecture allows it.",
        ),
    ] = "safetensors"
    variant: Annotated[
        str, typer.Option(help="raw, or an average of the trial: ema, bema, of a grid 'bema kappa=0.5 eta=0.2'.")
    ] = "raw"


def weights(
    study: Study,
    number: Number,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to: a file, for --format gpt2 a folder.", show_default=False)
    ],
    *,
    options: WeightsOptions,
    retraining: RetrainingOptions,
    force: Force = False,
) -> None:
    """Train a trial again, as far as it was trained, and write its weights; no study stores them.

    Example: search weights tinystories 4 --variant bema --format gpt2 -o tiny-gpt2
    """
    from cli.progress import training_bar
    from graft.retraining.weights import check_weights, write_weights

    variant, device = options.variant, retraining.device
    if output.exists() and not force:
        raise OptionError(f"--output: {output} exists; name another or add --force")
    if options.form == "gpt2" and output.exists() and not output.is_dir():
        raise OptionError(f"--output: {output} is a file; --format gpt2 writes a folder")
    if options.form != "gpt2" and output.is_dir():
        raise OptionError(f"--output: {output} is a folder; --format {options.form} writes a file")
    if not output.absolute().parent.is_dir():
        raise OptionError(f"--output: {output}: there is no folder {output.parent}")
    restored = retraining.restore(study, number)
    form = cast("WeightsFormat", options.form)  # checked by the option
    check_weights(restored, variant, form)
    say_restored(study, restored)
    with training_bar(number, restored.steps) as watch:
        count = write_weights(restored, output, variant=variant, form=form, device=device, watch=watch)
    show_text(f"{output}: {count:,} parameters of trial {number} after step {restored.steps:,}, {variant}")


def refit(
    study: Study,
    number: Number,
    condition: FittedCondition = "",
    *,
    retraining: RetrainingOptions,
) -> None:
    """Train a trial again, fit adaptive temperature to its attention, and print it for a space.

    Example: search refit quick-max-retrieval 0 --condition items=256
    """
    from cli.progress import training_bar
    from graft.retraining.weights import refit_scorer

    restored = retraining.restore(study, number)
    say_restored(study, restored)
    with training_bar(number, restored.steps) as watch:
        fields, _ = refit_scorer(restored, condition, retraining.device, watch)
    show_text("adaptive_temperature: {" + ", ".join(f"{name}: {value:.6g}" for name, value in fields.items()) + "}")
