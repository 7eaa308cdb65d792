"""The command report temperature: trains a trial again and draws its adaptive temperature's fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.commands.weights import FittedCondition
from cli.options import PAGE, PAGES, Force, Number, RetrainingOptions, Study, check_output


def temperature_report(
    study: Study,
    number: Number,
    output: Annotated[Path, PAGE],
    condition: FittedCondition = "",
    *,
    retraining: RetrainingOptions,
    force: Force = False,
) -> None:
    """Train a trial again and draw the best temperature over entropy, with the fit of `refit`.

    Example: search report temperature quick-max-retrieval 0 --condition items=256 -o fit.html
    """
    check_output(output, force, PAGES)
    from cli.progress import training_bar
    from graft.report.papers.temperature import write_fit
    from graft.retraining.weights import refit_scorer

    restored = retraining.restore(study, number)
    with training_bar(number, restored.steps) as watch:
        fields, best = refit_scorer(restored, condition, retraining.device, watch)
    title = f"Temperature of trial {number} of {study}" + (f", {condition}" if condition else "")
    write_fit(title, fields, best, output)
    typer.echo(str(output), err=True)
