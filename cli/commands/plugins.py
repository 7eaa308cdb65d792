"""The command list, which shows the known plug-ins, and the group plugin, for one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, Format, OptionError, Plugins, Storage, Study, open_db
from cli.tables import show, show_text

BROKEN = 1
"""Exit status when a plug-in breaks a promise of its family."""


def register(app: typer.Typer) -> None:
    """Add the command `list` and the group `plugin` to the program."""
    app.command("list")(list_plugins)
    group = typer.Typer(no_args_is_help=True)
    group.command("new")(new)
    group.command("check")(check)
    group.command("show")(show_sources)
    app.add_typer(group, name="plugin", help="Plug-ins of your own: begin one, check it, show what a study stored.")


def list_plugins(
    family: Annotated[str, typer.Argument(help="tasks, models, scorers, activations, positions, optimizers, ...")],
    plugins: Plugins = None,
    form: Format = "table",
) -> None:
    """List the plug-ins of a family with a sentence, origin, fields, rules and defaults.

    Example: search list optimizers
    """
    import polars as pl

    from graft.plugins.collecting import plugins_asked_for
    from graft.plugins.families import PACKAGED, FieldDescription, describe_plugins, families_by_folder, family_of
    from spaces.plugins.active import using

    known = families_by_folder()
    if family not in known:
        raise OptionError(f"list: {family!r} must be one of {', '.join(known)}")
    with using(plugins_asked_for(plugins or ())) as outside:
        rows = describe_plugins(family_of(known[family]))
    if form == "table":
        lines: list[str] = []
        before = ""
        for name, origin, about, field, rule, default in rows:
            if name != before:  # each plug-in once, its fields below it
                lines.append(f"{name}: {about}" if origin == PACKAGED else f"{name} (from {origin}): {about}")
            before = name
            if field:
                shown = default if default == "required" else f"default {default}"
                lines.append(f"    {field:<18} {rule}, {shown}")
        show_text("\n".join(lines))
    else:
        show(pl.DataFrame(rows, schema=dict.fromkeys(FieldDescription._fields, pl.String()), orient="row"), form)
    for fault in outside.faults:
        typer.echo(f"note: {fault}", err=True)


def new(
    family: Annotated[str, typer.Argument(help="task, model, scorer, activation, position, optimizer, sampler, ...")],
    file: Annotated[Path, typer.Argument(help="Where to; the file's name is the plug-in's.")],
    from_module: Annotated[bool, typer.Option("--from-module", help="A model that is a torch.nn.Module.")] = False,
    force: Force = False,
) -> None:
    """Write a short working plug-in of a family to a new file.

    Example: search plugin new scorer mine.py
    """
    from graft.testing.writing import write_template

    use = write_template(family, file, force=force, from_module=from_module)
    article = "an" if family[0] in "aeiou" else "a"
    typer.echo(f"{file}: {article} {family}; a space names it by `plugins: [./{file.name}]` and {use}", err=True)


def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE|MODULE...", help="./mine.py, a folder, package.module.")],
) -> None:
    """Run the contract of its family on each plug-in. Exit status 1 if anything is broken.

    Example: search plugin check mine.py
    """
    from graft.plugins.collecting import plugins_asked_for
    from graft.testing.reporting import check_plugins
    from spaces.plugins.active import using

    broken = 0
    with using(plugins_asked_for(files)) as outside:
        for report in check_plugins(outside):
            show_text(report.text)
            broken += report.is_broken
    show_text(f"{broken} broken" if broken else "all kept")
    if broken:
        raise typer.Exit(BROKEN)


def show_sources(
    study: Study,
    file: Annotated[str | None, typer.Argument(help="A file of the list. Default: the list.")] = None,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """List the files of a study's plug-ins from outside, or print one of them as it is stored.

    Example: search plugin show set-complement
    """
    import json

    import polars as pl

    with open_db(storage) as reader:
        sources = reader.study(study).sources().sort(pl.col("successor").is_not_null(), maintain_order=True)
    if file is None:
        defined = [
            ", ".join(f"{entry['family']} {entry['name']}" for entry in json.loads(text)) for text in sources["plugins"]
        ]
        state = (
            pl.when(pl.col("successor").is_null()).then(pl.lit("in use")).otherwise(pl.lit("replaced")).alias("state")
        )
        show(sources.select("module", "path", "sha256", pl.Series("plugins", defined, pl.String()), state), form)
        return
    matches = sources.filter((pl.col("module") == file) | (pl.col("path") == file))
    if matches.is_empty():
        known = ", ".join(sources["module"]) or "none"
        raise OptionError(f"plugin show: study {study!r} has no file {file!r} stored; it has {known}")
    typer.echo(matches["text"][0], nl=False)
