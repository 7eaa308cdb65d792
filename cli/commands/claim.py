"""The command group claim: statements about two arms that are made before they are trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, Format, Storage, Study, check_output, open_db, storage_url, user_name
from cli.tables import show, show_text


def register(app: typer.Typer) -> None:
    """Add the command group `claim` to the program."""
    group = typer.Typer(no_args_is_help=True)
    group.command("new")(new)
    group.command("list")(list_)
    group.command("show")(show_claims)
    app.command()(reveal)
    app.add_typer(group, name="claim", help="Say what an experiment will show before it runs: new, list, show.")


def new(
    space: Annotated[str, typer.Argument(help="A space with arms and seeds: a file, or a packaged one.")],
    arm: Annotated[str, typer.Option(help="The arm that is claimed to be better.")],
    difference: Annotated[float, typer.Option(help="The smallest difference of interest, in units of the metric.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.yaml: the space with the claim.")],
    than: Annotated[str | None, typer.Option(help="The arm that it is compared with. Default: the first.")] = None,
    metric: Annotated[
        str | None, typer.Option(help="{maximize: METRIC/VARIANT/CONDITION}. Default: the objective.")
    ] = None,
    correction: Annotated[str, typer.Option(help="Over the claims of a space: holm or bh.")] = "holm",
    force: Force = False,
) -> None:
    """Write a space with a claim about its arms, for `search launch`, which locks it.

    Example: search claim new my-arms.yaml --arm ssa --difference 0.02 -o claimed.yaml
    """
    from graft.files import writing
    from graft.launching.planning.claims import add_claim

    check_output(output, force)
    fields = {"arm": arm, "than": than, "metric": metric, "difference": difference, "correction": correction}
    text, claims = add_claim(space, {name: str(value) for name, value in fields.items() if value is not None})
    with writing(output):
        output.write_text(text)
    for claim in claims:
        typer.echo(f"{output}: {claim}, over {claim.seeds:,} seeds; `search advise {output}` says whether they suffice")


def list_(storage: Storage = None, form: Format = "table") -> None:
    """List the claims of all studies: their locks, the results by then, edits and looks.

    Example: search claim list
    """
    from graft.stored.claims import list_claims

    with open_db(storage) as reader:
        frame = list_claims(reader)
    show(frame, form)


def show_claims(study: Study, storage: Storage = None) -> None:
    """Show a study's claims and their history; `search report claim` has the verdict.

    Example: search claim show my-arms
    """
    from graft.stored.claims import claims_in, describe_history, read_history

    with open_db(storage) as reader:
        history = read_history(reader.study(study))
    lines = [f"{claim}, over {claim.seeds:,} seeds, {claim.correction}" for claim in claims_in(history)]
    show_text("\n".join([*lines, *describe_history(history)] or [f"{study} has no claim"]))


def reveal(study: Study, storage: Storage = None) -> None:
    """Open the test results of a finished study, record it, show the verdicts and close the study.

    Example: search reveal my-arms
    """
    from graft.plugins.families import version
    from graft.report.claims import read_claim_report
    from storage import reveal_study
    from storage.frames import open_reader

    url = storage_url(storage)
    with open_reader(url) as reader:
        before = reader.study(study).reveals().height
    reveal_study(url, study, person=user_name(), version=version())
    if before:
        typer.echo(f"note: {study} had been revealed before; this is recorded, too", err=True)
    with open_reader(url) as reader:
        report = read_claim_report(reader, study)
    show_text("\n".join(report.sentences()))
