"""The command list: what a space can name, with the fields of each and their rules."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import polars as pl
import typer

from cli.options import Format, OptionError
from cli.tables import show, show_text
from graft.families import listed_families
from spaces import plugins
from spaces.plugins.rules import REQUIRED, Rule

_SENTENCE_END = re.compile(r"[^.]\.(?= )")  # not the one of "r, r eta, ..."
_COLUMNS = ("name", "about", "field", "rule", "default")


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
    known = _reachable(listed_families())
    if family not in known:
        raise OptionError(f"list: {family!r} must be one of {', '.join(known)}")
    rows = [row for name in plugins.names(known[family]) for row in _rows(known[family], name)]
    if form == "table":
        show_text("\n".join(_lines(rows)))
    else:
        show(pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String()), orient="row"), form)


Row = tuple[str, str, str | None, str | None, str | None]


def _reachable(roots: Iterable[type]) -> Mapping[str, type]:
    """Folder -> family, for the families that a space names and those of their members' parts."""
    found: dict[str, type] = {}
    waiting = list(roots)
    while waiting:
        family = waiting.pop(0)
        folder = family.__module__.rpartition(".")[2]
        if folder not in found:
            found[folder] = family
            waiting.extend(_parts(family))
    return found


def _parts(family: type) -> Iterator[type]:
    for name in plugins.names(family):
        for rule in plugins.rules(plugins.load(family, name)).values():
            if rule.family:
                yield rule.family


def _rows(family: type, name: str) -> Iterator[Row]:
    """One row per field, or a single one for a plug-in without any."""
    member = plugins.load(family, name)
    about = _first_sentence(member)
    fields = {field.name: field for field in dataclasses.fields(member)}
    rules = plugins.rules(member)
    for field, rule in rules.items():
        yield name, about, field, _rule(rule), _default(fields[field])
    if not rules:
        yield name, about, None, None, None


def _first_sentence(member: type) -> str:
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    text = " ".join(paragraph.split())
    end = _SENTENCE_END.search(text)
    return text[: end.end()] if end else text


def _rule(rule: Rule) -> str:
    if rule.family:
        return f"{plugins.title(rule.family)}: one of {', '.join(plugins.names(rule.family))}"
    return rule.describe()


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return plugins.name_of(value) if dataclasses.is_dataclass(value) else str(value)
    if field.default is REQUIRED:
        return "required"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    """For people: each plug-in once, its fields below it."""
    before = ""
    for name, about, field, rule, default in rows:
        if name != before:
            yield f"{name}: {about}"
        before = name
        if field:
            yield f"    {field:<18} {rule}, {default if default == 'required' else f'default {default}'}"
