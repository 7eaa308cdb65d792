"""The command list: what a space can name, with the fields of each and their rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import Format, OptionError
from cli.tables import show, show_text

if TYPE_CHECKING:
    from graft.families import FieldDescription


def register(app: typer.Typer) -> None:
    """Add the command `list` to the program."""
    app.command("list")(list_plugins)


def list_plugins(
    family: Annotated[str, typer.Argument(help="tasks, models, scorers, activations, positions, optimizers, ...")],
    form: Format = "table",
) -> None:
    """List the plug-ins of a family with a sentence on each, its fields, their rules and defaults.

    Example: search list optimizers
    """
    import polars as pl

    from graft.families import FieldDescription, describe_plugins, families_by_folder

    known = families_by_folder()
    if family not in known:
        raise OptionError(f"list: {family!r} must be one of {', '.join(known)}")
    found = describe_plugins(known[family])
    if form == "table":
        show_text("\n".join(_lines(found)))
    else:
        show(pl.DataFrame(found, schema=dict.fromkeys(FieldDescription._fields, pl.String()), orient="row"), form)


def _lines(fields: Iterable[FieldDescription]) -> Iterator[str]:
    """For people: each plug-in once, its fields below it."""
    before = ""
    for name, about, field, rule, default in fields:
        if name != before:
            yield f"{name}: {about}"
        before = name
        if field:
            yield f"    {field:<18} {rule}, {default if default == 'required' else f'default {default}'}"
