"""The command report transfer: a study's compatibility matrix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.options import Force, Storage, Study, check_output, open_db, say_look

ENDINGS = (".html", ".md", ".tex", ".csv", ".parquet", ".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """The rows and columns of a matrix, and their comparison."""

    source: Annotated[str, typer.Option(metavar="PATH", help="Rows: where a trial says what it was made for.")] = (
        "architecture.source"
    )
    target: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Columns: what it was trained on. Default: transfer.target, else task.name."),
    ] = None
    pair: Annotated[str, typer.Option(metavar="PATH", help="The integer that says which trials are compared.")] = "pair"
    baseline: Annotated[str, typer.Option(metavar="NAME", help="The row that all others are compared with.")] = (
        "baseline"
    )
    interval: Annotated[
        Literal["student", "bootstrap"], typer.Option(help="How the intervals over pairs are made.")
    ] = "student"
    order: Annotated[
        Literal["similarity", "name"], typer.Option(help="Rows and columns: like ones side by side, or by name.")
    ] = "similarity"


def transfer_report(
    study: Study,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="FILE.html, .md, .tex, .csv, .parquet, .png, .svg or .pdf.")
    ],
    *,
    options: MatrixOptions,
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write a study's compatibility matrix: each source on each target, against the baseline.

    Any two paths of a trial make one: --source model.scorer --baseline softmax --pair group_number.

    Example: search report transfer stage-two -o matrix.html
    """
    check_output(output, force, ENDINGS)
    from graft.report.compatibility.content import cautions
    from graft.report.compatibility.formats import render
    from graft.report.compatibility.reading import MatrixRequest, read_transfer

    with open_db(storage) as reader:
        transfer, learned = read_transfer(reader, study, MatrixRequest(**vars(options)))
        say_look(reader, study, "report transfer")
    render(transfer, output, learned)
    for caution in cautions(transfer):
        typer.echo(f"note: {caution}", err=True)
    typer.echo(str(output), err=True)
