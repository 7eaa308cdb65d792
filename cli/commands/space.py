"""Commands on space files, before anything runs: search space check, sample, describe, list."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Format, NestedFormat, Plugins, say_notes
from cli.tables import show, show_json, show_text
from spaces.errors import GraftError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spaces.space import Space

File = Annotated[str, typer.Argument(metavar="FILE", help="A space file, or the name of a packaged space.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Space files, or names of packaged spaces.")]


def register(app: typer.Typer) -> None:
    """Add the command group `space` to the program."""
    group = typer.Typer(no_args_is_help=True)
    for command in (check, sample, describe, schema, list_spaces):
        group.command("list" if command is list_spaces else None)(command)
    app.add_typer(group, name="space", help="Check, sample and describe space files; list the packaged ones.")


def check(files: Files, plugins: Plugins = None, form: NestedFormat = "table") -> None:
    """Check space files: the language, every plug-in's rules, and a few hundred draws of each.

    Example: search space check spaces/catalogue/*.yaml
    """
    from graft.launching.planning.preview import summarise
    from graft.launching.planning.review import review
    from spaces.messages import one_line

    checked: list[dict[str, object]] = []
    for file in files:
        try:
            with _load(file, plugins) as space:
                space.check()
                notes = review(space)
                study, trials, summary = space.name, space.search.trials, summarise(space)
        except GraftError as error:
            reason = one_line(str(error))
            typer.echo(f"error: {reason}", err=True)
            nothing = {"study": None, "trials": None, "summary": None, "notes": []}
            checked.append({"file": file, "good": False, "error": reason, **nothing})
            continue
        if form == "table":
            show_text(f"{file}: good; {summary}")
        say_notes(notes)
        details = {"study": study, "trials": trials, "summary": summary, "notes": notes}
        checked.append({"file": file, "good": True, "error": None, **details})
    if form == "json":
        show_json({"format": 1, "spaces": checked})
    if not all(verdict["good"] for verdict in checked):
        raise typer.Exit(2)


def sample(
    file: File,
    count: Annotated[int, typer.Option("-n", min=1, help="How many trials, spread evenly over the study.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Seed of the search, in place of the space's.")] = None,
    plugins: Plugins = None,
    form: Format = "table",
) -> None:
    """Show trials as a launch would start them; json gives whole configurations.

    Example: search space sample set_complement -n 3
    """
    import polars as pl

    from graft.launching.planning.preview import sample_trials

    with _load(file, plugins, seed) as space:
        trials = sample_trials(space, count)
    if form == "table":  # a column for each trial: few trials with many params read best so
        from graft.files import cell

        paths = list(dict.fromkeys(path for trial in trials for path in trial.params))
        columns = {
            f"trial {trial.number}": [str(trial.group), *(cell(trial.params.get(path)) for path in paths)]
            for trial in trials
        }
        show(pl.DataFrame({"": ["group", *paths], **columns}), form)
        return
    rows: list[dict[str, object]] = []
    for trial in trials:
        row: dict[str, object] = {"number": trial.number, "group": trial.group, "seed": trial.seed}
        if form == "json":
            row |= {"params": dict(trial.params), "config": dict(trial.config)}
        else:
            row.update(trial.params)
        rows.append(row)
    if form == "json":
        show_json(rows)
    else:
        show(pl.DataFrame(rows, infer_schema_length=None, strict=False), form)


def describe(file: File, plugins: Plugins = None, form: Format = "table") -> None:
    """Say line by line what a space draws, for a group or for a trial, and how large the study is.

    Example: search space describe set_complement
    """
    from graft.launching.planning.preview import describe_space, summarise

    with _load(file, plugins) as space:
        summary, frame = summarise(space), describe_space(space)
    if form == "table":
        show_text(f"{summary}\n")
    has_conditions = frame["condition"].count() > 0
    show(frame if has_conditions or form != "table" else frame.drop("condition"), form)


def schema(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A space whose plug-ins are described, too.")
    ] = None,
    plugins: Plugins = None,
) -> None:
    """Print the JSON Schema of spaces and plug-ins, with which editors check a space file.

    Example: search space schema my-space.yaml
    """
    from graft.plugins.collecting import plugins_asked_for, plugins_of_space
    from graft.plugins.schema import space_schema
    from spaces.plugins.active import using

    asked = plugins or ()
    with using(plugins_of_space(file, asked) if file else plugins_asked_for(asked)):
        document = space_schema()
    show_json(document)


def list_spaces(form: Format = "table") -> None:
    """List the packaged spaces, which every command takes by name.

    Example: search space list
    """
    from graft.launching.planning.preview import list_packaged_spaces

    show(list_packaged_spaces(), form)


@contextmanager
def _load(file: str, plugins: Sequence[str] | None, seed: int | None = None) -> Generator[Space]:
    """Yield the space of a file, while the plug-ins that it asks for are in use."""
    from graft.plugins.collecting import plugins_of_space
    from graft.plugins.families import families
    from spaces import load
    from spaces.plugins.active import using

    with using(plugins_of_space(file, plugins or ())):
        yield load(file, families(), {} if seed is None else {"search.seed": str(seed)})
