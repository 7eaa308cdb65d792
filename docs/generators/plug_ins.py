"""The pages of plug-ins, one for each family, from the plug-ins' own docstrings and fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from docs.generators.tables import code, prose, table
from graft.plugins.families import families_by_folder, family_of
from spaces import plugins
from spaces.plugins.rules import REQUIRED

ROOT = Path(__file__).parents[2]


def pages() -> Mapping[str, str]:
    """`index.md`, which lists all, and a page for each family by the name of its folder."""
    families = {folder: family_of(name) for folder, name in families_by_folder().items()}
    return {"index.md": _index(families)} | {f"{name}.md": _page(name, family) for name, family in families.items()}


def _index(families: Mapping[str, type]) -> str:
    rows = [
        [f"[{name}]({name}.md)", ", ".join(f"[{one}]({name}.md#{one})" for one in plugins.names(family))]
        for name, family in families.items()
    ]
    lines = ["# Plug-ins", "", "One file each; `search list FAMILY` prints the same on a terminal.", ""]
    return "\n".join([*lines, *table(["family", "members"], rows)]) + "\n"


def _page(name: str, family: type) -> str:
    members = {one: plugins.load(family, one) for one in plugins.names(family)}
    lines = [f"# {name.capitalize()}", "", *_paragraphs(inspect.getdoc(family) or "")]
    for one, member in members.items():
        lines += [f"## {one}", "", *_paragraphs(inspect.getdoc(member) or ""), *_fields(member), "", _file(member), ""]
    return "\n".join(lines)


def _paragraphs(docstring: str) -> Iterator[str]:
    """Yield a docstring as paragraphs of Markdown; its source is a paragraph of its own."""
    for paragraph in re.split(r"\n\n|\s+(?=Source: )", docstring):
        yield from (prose(paragraph), "")


def _fields(member: type) -> Sequence[str]:
    ruled = plugins.rules(member)
    defaults = {one.name: one for one in dataclasses.fields(member)} if ruled else {}
    rows: list[list[str]] = []
    for field, rule in ruled.items():
        about = f"one of {rule.family.__module__.rpartition('.')[2]}" if rule.family else prose(rule.describe())
        rows.append([code(field), about, _default(defaults[field])])
    return table(["field", "rule", "default"], rows) if rows else ["No fields."]


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return code(plugins.name_of(field.default_factory()))
    if field.default is REQUIRED or field.default is dataclasses.MISSING:
        return "required"
    return code(plugins.name_of(field.default) if dataclasses.is_dataclass(field.default) else field.default)


def _file(member: type) -> str:
    return f"File: {code(str(Path(inspect.getfile(member)).relative_to(ROOT)))}"
