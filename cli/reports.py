"""The command group report: what a study found, as a page for people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.nonlinearities import nonlinearities_report
from cli.options import Force, OptionError, Storage, Study, check_output, storage_url
from cli.transfer import transfer_report

if TYPE_CHECKING:
    import polars as pl

    from storage.frames import Reader

_ENDINGS = (".html", ".md")


def register(app: typer.Typer) -> None:
    """Add the command group `report` to the program."""
    group = typer.Typer(no_args_is_help=True)
    group.command("study")(study_report)
    group.command("transfer")(transfer_report)
    group.command("nonlinearities")(nonlinearities_report)
    app.add_typer(
        group, name="report", help="Write what studies found: report study, report transfer, report nonlinearities."
    )


def study_report(
    study: Study,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.html, or FILE.md with its figures beside it.")],
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the report of one study: its best trials, averaged against raw parameters, its groups.

    Example: search report study set-complement -o report.html
    """
    if output.suffix not in _ENDINGS:
        raise OptionError(f"{output}: the ending must be one of {', '.join(_ENDINGS)}")
    check_output(output, force)
    from graft.families import diagnostic_names
    from graft.files import writing
    from graft.report.study import render
    from search.analysis.summary import summarise
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        row = reader.study(study)
        trials, metrics, lanes = _trials(reader, row), reader.metrics(study), reader.lane_steps(study)
        summary = summarise(row, trials, metrics, lanes=lanes, diagnostics=diagnostic_names())
    with writing(output):
        render(summary, output)
    typer.echo(str(output), err=True)


def _trials(reader: Reader, study: Mapping[str, Any]) -> pl.DataFrame:
    """The study's trials, with the config of each group's first one alone: configs are most of a study's size."""
    from storage.frames import TRIALS

    columns = tuple(column for column in TRIALS if column not in ("draws", "config"))
    name, first = study["name"], "SELECT min(number) FROM trials WHERE study_id = {id} AND objective IS NOT NULL"
    where = f"number IN ({first.format(id=study['id'])} GROUP BY group_number)"
    configs = reader.trials(name, where=where, columns=("number", "config"))
    return reader.trials(name, columns=columns).join(configs, on="number", how="left", maintain_order="left")
