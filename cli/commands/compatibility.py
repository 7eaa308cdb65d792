"""The command report transfer: a study's compatibility matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.options import Force, OptionError, Storage, Study, check_output, storage_url
from spaces.settings import Direction

ENDINGS = (".html", ".md", ".tex", ".csv", ".parquet", ".png", ".svg")


@dataclass(frozen=True, kw_only=True)
class MatrixOptions:
    """What the rows and columns of a matrix are, and how they are compared."""

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
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.html, .md, .tex, .csv, .parquet, .png or .svg.")],
    *,
    options: MatrixOptions,
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the compatibility matrix of one study: what each source changes on each target, against the baseline.

    Any two paths of a trial make one: --source model.scorer --baseline softmax --pair group_number.

    Example: search report transfer stage-two -o matrix.html
    """
    if output.suffix not in ENDINGS:
        raise OptionError(f"{output}: the ending must be one of {', '.join(ENDINGS)}")
    check_output(output, force)
    from graft.report.compatibility.content import Paths, Transfer, cautions
    from graft.report.compatibility.formats import render
    from graft.report.nonlinearities.learned import Learned
    from graft.stored.params import renewing
    from graft.stored.studies import read_target_objectives
    from search.analysis.statistics.intervals import Bootstrap, Student
    from search.analysis.transfer.affinity import by_similarity
    from search.analysis.transfer.compatibility_matrix import compare
    from search.analysis.transfer.stage_two import READ, results, target_of
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        row, trials = reader.study(study), renewing(reader, study)(reader.trials(study, columns=READ))
        architectures = reader.architectures(study)
        column = options.target or target_of(trials)
        wanted = read_target_objectives(reader, row) if column == "transfer.target" else {}
    directions: dict[str, Direction] = {name: one.direction for name, one in wanted.items()}
    found = results(trials, directions or row["direction"], source=options.source, target=column, seed=options.pair)
    matrix = compare(found, options.baseline, Bootstrap() if options.interval == "bootstrap" else Student())
    transfer = Transfer(
        study=study,
        objective=row["objective"] if len(set(wanted.values())) < 2 else "the target's objective",
        direction=_common(directions.values()) or row["direction"],
        paths=Paths(source=options.source, target=column, pair=options.pair),
        matrix=by_similarity(matrix) if options.order == "similarity" else matrix,
        results=found,
        left_out=trials.height - found.height,
    )
    render(transfer, output, None if architectures.is_empty() else Learned.of(row, architectures, directions))
    for caution in cautions(transfer):
        typer.echo(f"note: {caution}", err=True)
    typer.echo(str(output), err=True)


def _common(directions: Iterable[Direction]) -> Direction | None:
    """The one direction of all targets, if it is one."""
    found = set(directions)
    return found.pop() if len(found) == 1 else None
