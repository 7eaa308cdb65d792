"""The command report nonlinearities: the functions that trials learned in place of GELU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.options import Force, OptionError, Storage, Study, check_output, open_db, say_look
from spaces.errors import StudyError
from spaces.messages import shorten
from spaces.settings import Direction

if TYPE_CHECKING:
    import polars as pl

ENDINGS = (".svg", ".png", ".pdf", ".html", ".csv", ".parquet", ".json")


@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """The non-linearities that are written, and the version that is drawn beside them."""

    task: Annotated[list[str] | None, typer.Option(help="Only those learned on this task; may be repeated.")] = None
    component: Annotated[
        Literal["mlp", "attention"] | None, typer.Option(help="Only those of the MLPs, or of attention.")
    ] = None
    trial: Annotated[list[int] | None, typer.Option(help="Only those of this trial; may be repeated.")] = None
    version: Annotated[
        Literal["symmetrised", "polynomial", "chebyshev"] | None,
        typer.Option("--with", help="Draw this version beside each: averaged with its mirror image, or a polynomial."),
    ] = None


def nonlinearities_report(
    study: Study,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.svg, .png, .pdf, .html, .csv, .parquet or .json.")
    ],
    *,
    options: SelectionOptions,
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the non-linearities that trials learned: a picture, a page, or values at their knots.

    Example: search report nonlinearities stage-one -o learned.png --with polynomial
    """
    check_output(output, force, ENDINGS)
    from graft.report.nonlinearities.content import worst_version
    from graft.report.nonlinearities.formats import render
    from graft.report.nonlinearities.learned import Learned
    from graft.stored.studies import read_target_objectives

    with open_db(storage) as reader:
        say_look(reader, study, "report nonlinearities")
        stored = reader.study(study)
        row, splines = stored.row, stored.architectures.read()
        objectives = read_target_objectives(reader, row)
    if splines.is_empty():
        raise StudyError(
            f"no trial of study {study!r} has learned a non-linearity; those of a space with `learning: architecture` "
            "do, and those that train a spline"
        )
    splines = _filter(splines, "--task", "task", options.task)
    splines = _filter(splines, "--component", "component", [options.component] if options.component else None)
    splines = _filter(splines, "--trial", "number", options.trial)
    directions: dict[str, Direction] = {name: objective.direction for name, objective in objectives.items()}
    learned = Learned.of(row, splines, directions)
    if options.version:
        from workers.networks.spline_forms import form

        members = [
            replace(member, version=form(options.version, member.knots, (member.low, member.high), member.active_range))
            for member in learned.members
        ]
        learned = replace(learned, members=members)
    render(learned, output)
    if note := worst_version(learned):
        typer.echo(f"note: {note}", err=True)
    typer.echo(str(output), err=True)


def _filter(splines: pl.DataFrame, option: str, column: str, wanted: Sequence[object] | None) -> pl.DataFrame:
    """Return the rows that have one of the `wanted` values in a column (None: all rows)."""
    if wanted is None:
        return splines
    import polars as pl

    known = splines[column].unique().sort().to_list()
    for value in wanted:
        if value not in known:
            choices = shorten(", ".join(map(str, known)))
            raise OptionError(f"{option}: no non-linearity is left for {value!r}; choose among {choices}")
    return splines.filter(pl.col(column).is_in(wanted))
