"""The command advise: facts from stored trials about a task, or about the claim of a space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from cli.commands.launch import run_enrolled
from cli.option_groups import OverrideOptions, RunOptions
from cli.options import Format, OptionError, Plugins, Storage, storage_url
from cli.tables import show, show_json, show_text


def advise(
    name: Annotated[
        str, typer.Argument(metavar="TASK|SPACE", help="A task; or a space with a claim: a file, or a packaged one.")
    ],
    *,
    difference: Annotated[
        float | None, typer.Option(metavar="X", help="Of two arms of a task, that seeds are counted for.")
    ] = None,
    pilot: Annotated[
        int | None, typer.Option(min=3, metavar="SEEDS", help="Train a claim's arms from so many other seeds first.")
    ] = None,
    overrides: OverrideOptions,
    plugins: Plugins = None,
    storage: Storage = None,
    run: RunOptions,
    form: Format = "table",
) -> None:
    """Say what stored trials tell of a task, or whether the seeds of a space's claim suffice.

    Of a task: the noise over seeds, the seeds that find a difference, the best of so many random
    trials, and where the best tenth of them lay. Of a claim: whether its seeds can find its
    difference, by the spread of stored trials or of a pilot, a study of its own, NAME-pilot-SEEDS,
    with another `search.seed`: the claim's own data stay unseen.

    Example: search advise add_mod
    """
    url = storage_url(storage)
    if pilot is None and not overrides.by_path() and _is_task(name):
        _advise_task(name, difference, plugins or (), url, form)
        return
    if difference is not None:
        raise OptionError("--difference goes with a task; a claim has its own, --set claim.difference=X")
    import polars as pl

    from graft.launching.enrolling import enrol
    from graft.launching.planning.claims import advise as advise_space
    from graft.launching.planning.claims import plan_pilot
    from storage.frames import open_reader

    with overrides.load(name, plugins or ()) as loaded:
        if pilot is not None:
            trial = plan_pilot(loaded, pilot)
            enrolled = str(enrol(url, trial.name, trial))
            run_enrolled(url, trial.name, run.resolve_placement(), run, enrolled)
        with open_reader(url) as reader:
            advice = advise_space(reader, loaded, loaded.name)
    if not advice:
        raise OptionError(
            f"{name} has no claim; `search claim new` adds one, or --set claim='{{arm: A, difference: D}}'; "
            "`search advise TASK` says what is known of its task"
        )
    if form == "table":
        show_text("\n".join(map(str, advice)))
    else:
        show(pl.DataFrame([part.to_row() for part in advice]), form)


def _is_task(name: str) -> bool:
    """Return True for the name of a task, and for an unknown name that is no file and no space."""
    from graft.plugins.families import packaged_names
    from spaces.reading.catalogue import packaged_spaces

    if "/" in name or Path(name).suffix or Path(name).exists():
        return False
    return name in packaged_names("task") or name not in packaged_spaces()


def _advise_task(task: str, difference: float | None, plugins: Sequence[str], url: str, form: str) -> None:
    from graft.launching.planning.task_advice import read_task_advice, to_json
    from graft.plugins.collecting import plugins_asked_for
    from spaces.plugins.active import using
    from storage.frames import open_reader

    if form not in ("table", "json"):
        raise OptionError(f"--format: of a task {form!r} must be one of table, json")
    with using(plugins_asked_for(plugins)), open_reader(url) as reader:
        known = read_task_advice(reader, task, difference)
    if form == "json":
        show_json(to_json(known))
    else:
        show_text(repr(known))
