"""The command group report: a study's results as a page for people."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cli.commands.attention import attention_report
from cli.commands.compatibility import transfer_report
from cli.commands.nonlinearities import nonlinearities_report
from cli.commands.norms import norms_report
from cli.commands.temperature import temperature_report
from cli.option_groups import with_groups
from cli.options import (
    PAGE,
    PAGES,
    Force,
    Format,
    NestedFormat,
    OptionError,
    Plugins,
    Storage,
    Study,
    check_output,
    open_db,
    say_look,
)
from cli.tables import json_text, show, show_json, show_text
from spaces.plugins.active import using


def register(app: typer.Typer) -> None:
    """Add the command group `report` to the program."""
    group = typer.Typer(no_args_is_help=True)
    for command in (
        *(study_report, compare_report, claim_report, paper_report, transfer_report, nonlinearities_report),
        *(attention_report, temperature_report, norms_report, evaluations_report),
    ):
        group.command(command.__name__.removesuffix("_report"))(with_groups(command))
    app.add_typer(
        group,
        name="report",
        help="Write what studies found: study, compare, claim, transfer, nonlinearities, attention, norms ...",
    )


def study_report(
    study: Study,
    output: Annotated[Path, PAGE],
    force: Force = False,
    plugins: Plugins = None,
    storage: Storage = None,
) -> None:
    """Write the report of one study: its best trials, averaged against raw parameters, its groups.

    Example: search report study set-complement -o report.html
    """
    check_output(output, force, PAGES)
    # Each of Polars' threads needs memory of its own. Polars reads this when it is loaded, below.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    from graft.plugins.collecting import plugins_asked_for
    from graft.plugins.stored import read_outside
    from graft.report.study import read, render

    with open_db(storage) as reader:
        outside = read_outside(reader, study) | plugins_asked_for(plugins or ())
        say_look(reader, study, "report study")
        with using(outside):
            render(read(reader, study), output)
    typer.echo(str(output), err=True)


def compare_report(
    studies: Annotated[list[str], typer.Argument(help="Experiments: studies of a space with arms or seeds.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="FILE.html, or FILE.md with its figures beside it. Default: the terminal."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The arm to compare with; of several studies it is called 'STUDY: ARM'.")
    ] = None,
    force: Force = False,
    storage: Storage = None,
    form: NestedFormat = "table",
) -> None:
    """Compare the arms of one or several experiments over the same seeds, with intervals and tests.

    Without -o it prints what was found, and how each arm differs from the baseline under the
    objective's condition; `--format json` prints every condition, with or without -o.

    Example: search report compare quick-every -o arms.html
    """
    if output is not None:
        check_output(output, force, PAGES)
    from graft.report.arms import read_comparison

    with open_db(storage) as reader:
        comparison = read_comparison(reader, studies, baseline)
        for study in studies:
            say_look(reader, study, "report compare")
        if output is not None:
            comparison.write(output)
            typer.echo(str(output), err=True)
        if form == "json":
            show_json(comparison.to_json())
        elif output is None:
            show_text("\n".join([*comparison.sentences(), ""]))
            show(comparison.differences(), "table")


def claim_report(
    study: Study,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json: all that is needed to check and repeat it.")
    ] = None,
    force: Force = False,
    storage: Storage = None,
    form: NestedFormat = "table",
) -> None:
    """Say whether claims are confirmed, refuted or undecided, and their history since launch.

    Example: search report claim my-arms -o claim.json
    """
    if output is not None:
        if output.suffix != ".json":
            raise OptionError(f"{output}: the ending must be .json")
        check_output(output, force)
    from graft.files import writing
    from graft.report.claims import read_claim_report

    with open_db(storage) as reader:
        say_look(reader, study, "report claim")
        report = read_claim_report(reader, study)
    if output is not None:
        with writing(output):
            output.write_text(json_text(report.to_json()))
        typer.echo(str(output), err=True)
    elif form == "json":
        show_json(report.to_json())
    else:
        show_text("\n".join(report.sentences()))


def paper_report(
    item: Annotated[
        str | None,
        typer.Argument(help="A table or figure: 003/figure-4. Without one, all are listed with their state."),
    ] = None,
    study: Annotated[str | None, typer.Argument(help="A study of its space, or of the one cut to a laptop.")] = None,
    output: Annotated[Path | None, PAGE] = None,
    form: Format = "table",
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Make a table or figure of one of the five papers from a study, or list them all.

    Example: search report paper 003/figure-4 quick-othello-gap -o figure-4.html
    """
    from graft.report.papers.items import find_item, read_items, write_item

    if item is None:
        import polars as pl

        columns = ("name", "state", "shows", "space", "cut", "report", "missing")
        show(pl.DataFrame([{name: getattr(exhibit, name) for name in columns} for exhibit in read_items()]), form)
        return
    exhibit = find_item(item)
    if exhibit.report == "formulas":
        if study is not None or output is None:
            raise OptionError(f"{exhibit.name} is made of formulas: name no study, and -o FILE")
    elif study is None or output is None:
        raise OptionError(f"{item}: name a study of {exhibit.cut or exhibit.space}, and -o FILE")
    check_output(output, force, PAGES)
    if study is None:
        from graft.report.papers.formulas import write_formulas

        write_formulas(exhibit.name, f"{exhibit.name}: {exhibit.shows}", output)
    else:
        with open_db(storage) as reader:
            say_look(reader, study, "report paper")
            write_item(reader, exhibit, study, output)
    typer.echo(str(output), err=True)


def evaluations_report(
    files: Annotated[list[Path], typer.Argument(help="What `search evaluate -o FILE.json` wrote, of any trials.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.html or FILE.md.")],
    force: Force = False,
) -> None:
    """Put scores of several models into a table, with standard errors over their arms' seeds.

    Example: search report evaluations scores-0.json scores-1.json -o scores.html
    """
    if output.suffix not in PAGES:
        raise OptionError(f"-o {output}: the ending must be one of {', '.join(PAGES)}")
    check_output(output, force)
    from graft.report.papers.evaluations import read_evaluations, write_evaluations

    write_evaluations(read_evaluations(files), output)
    typer.echo(str(output), err=True)
