"""The command advise: what the seeds of a space can find, before they are trained."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.commands.launch import run_enrolled
from cli.option_groups import OverrideOptions, RunOptions, with_groups
from cli.options import Format, OptionError, Plugins, Storage, storage_url
from cli.tables import show, show_text


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command()(with_groups(advise))


def advise(
    space: Annotated[str, typer.Argument(help="A space with a claim: a file, or a packaged one.")],
    *,
    pilot: Annotated[
        int | None, typer.Option(min=3, metavar="SEEDS", help="Train the arms from so many other seeds first.")
    ] = None,
    overrides: OverrideOptions,
    plugins: Plugins = None,
    storage: Storage = None,
    run: RunOptions,
    form: Format = "table",
) -> None:
    """Say whether a claim's seeds can find its difference, by the spread over seeds of stored trials or of a pilot.

    A pilot is a study of its own, NAME-pilot-SEEDS, with another `search.seed`: the claim's own data stay unseen.

    Example: search advise my-arms.yaml --pilot 8
    """
    import polars as pl

    from graft.launching.claiming import enrol
    from graft.launching.planning.claims import advise as advise_space
    from graft.launching.planning.claims import plan_pilot
    from storage.frames import open_reader

    url = storage_url(storage)
    with overrides.load(space, plugins or ()) as loaded:
        if pilot is not None:
            trial = plan_pilot(loaded, pilot)
            run_enrolled(url, trial.name, run, str(enrol(url, trial.name, trial)))
        with open_reader(url) as reader:
            found = advise_space(reader, loaded, loaded.name)
    if not found:
        raise OptionError(
            f"{space} has no claim; `search claim new` adds one, or --set claim='{{arm: A, difference: D}}'"
        )
    if form == "table":
        show_text("\n".join(map(str, found)))
    else:
        show(pl.DataFrame([one.to_row() for one in found]), form)
