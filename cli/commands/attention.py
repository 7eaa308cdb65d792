"""The command report attention: trains a stored trial again and draws maps of its attention."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.options import PAGE, PAGES, Force, Number, RetrainingOptions, Study, check_output


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """The maps that are drawn of a trial's attention."""

    condition: Annotated[
        list[str] | None,
        typer.Option(help="A condition of its metrics, 'items=64 scorer=trained'; repeatable. Default: validation."),
    ] = None
    sequence: Annotated[int, typer.Option(help="Which sequence of the set is drawn, where sets have no queries.")] = 0
    step: Annotated[int | None, typer.Option(help="After so many steps. Default: as far as it was trained.")] = None


def attention_report(
    study: Study,
    number: Number,
    output: Annotated[Path, PAGE],
    *,
    options: MapOptions,
    retraining: RetrainingOptions,
    force: Force = False,
) -> None:
    """Train a trial again and draw its attention to large items, or in one sequence.

    Example: search report attention quick-max-retrieval 0 --condition items=64 -o attention.html
    """
    check_output(output, force, PAGES)
    from graft.report.papers.attention import write_maps

    model = retraining.train(study, number, options.step)
    maps = {condition: model.attention(condition) for condition in options.condition or [""]}
    write_maps(study, number, maps, options.sequence, output)
    typer.echo(str(output), err=True)
