"""The command learn: a prior for the sampler `learned`, from stored trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, OptionError, Storage, check_output, storage_url


def learn(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The prior, a .npz file.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="URL,...", help="Databases. Default: --storage, without --table.")
    ] = None,
    table: Annotated[str | None, typer.Option(metavar="FOLDER", help="A table of trials.")] = None,
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Learn a prior for the sampler `learned` from the trials of databases and of a table.

    Example: search learn --from sqlite:///graft.db -o prior.npz
    """
    from graft.files import writing
    from graft.launching.planning.learning import collect_sources
    from graft.launching.surrogate import TrialTable
    from search.samplers._prior import learn_prior, write_prior

    check_output(output, force)
    urls = from_.split(",") if from_ else ([] if table else [storage_url(storage)])
    sources = collect_sources(urls, TrialTable(Path(table)) if table else None)
    if not sources:
        raise OptionError("nothing to learn from: no study has eight trials with a result, of one objective")
    prior = learn_prior(sources)
    with writing(output):
        write_prior(prior, output)
    count = sum(len(source.configs) for source in sources)
    typer.echo(f"{output}: learnt from {count:,} trials of {', '.join(source.task for source in sources)}", err=True)
