"""The command list, what a space can name; and the group plugin, for plug-ins of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Format, OptionError, Plugins, Storage, Study, storage_url
from cli.tables import show, show_text

if TYPE_CHECKING:
    from graft.families import FieldDescription


def register(app: typer.Typer) -> None:
    """Add the command `list` and the group `plugin` to the program."""
    app.command("list")(list_plugins)
    group = typer.Typer(no_args_is_help=True)
    group.command("show")(show_sources)
    app.add_typer(group, name="plugin", help="Plug-ins of your own: show what a study has stored of them.")


def list_plugins(
    family: Annotated[str, typer.Argument(help="tasks, models, scorers, activations, positions, optimizers, ...")],
    plugins: Plugins = None,
    form: Format = "table",
) -> None:
    """List the plug-ins of a family with a sentence on each, where it comes from, its fields, their rules and defaults.

    Example: search list optimizers
    """
    import polars as pl

    from graft.families import FieldDescription, describe_plugins, families_by_folder, family_of
    from graft.plugins.collecting import plugins_asked_for
    from spaces.plugins.active import using

    known = families_by_folder()
    if family not in known:
        raise OptionError(f"list: {family!r} must be one of {', '.join(known)}")
    with using(plugins_asked_for(plugins or ())) as outside:
        found = describe_plugins(family_of(known[family]))
    if form == "table":
        show_text("\n".join(_lines(found)))
    else:
        show(pl.DataFrame(found, schema=dict.fromkeys(FieldDescription._fields, pl.String()), orient="row"), form)
    for fault in outside.faults:
        typer.echo(f"note: {fault}", err=True)


def _lines(fields: Iterable[FieldDescription]) -> Iterator[str]:
    """For people: each plug-in once, its fields below it."""
    from graft.families import PACKAGED

    before = ""
    for name, origin, about, field, rule, default in fields:
        if name != before:
            yield f"{name}: {about}" if origin == PACKAGED else f"{name} (from {origin}): {about}"
        before = name
        if field:
            yield f"    {field:<18} {rule}, {default if default == 'required' else f'default {default}'}"


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

    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        sources = reader.sources(study)
    if file is None:
        defined = [
            ", ".join(f"{one['family']} {one['name']}" for one in json.loads(text)) for text in sources["plugins"]
        ]
        show(sources.select("module", "path", "sha256", pl.Series("plugins", defined, pl.String())), form)
        return
    found = sources.filter((pl.col("module") == file) | (pl.col("path") == file))
    if found.is_empty():
        known = ", ".join(sources["module"]) or "none"
        raise OptionError(f"plugin show: study {study!r} has no file {file!r} stored; it has {known}")
    typer.echo(found["text"][0], nl=False)
