"""The pages of the YAML language and of the packaged spaces, from the modules that read them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping

from docs.generators.python import read_comments
from docs.generators.tables import code, prose, table
from graft.plugins.families import families
from spaces.grammar import distributions, expressions
from spaces.plugins import required_fields, rules
from spaces.plugins.rules import REQUIRED
from spaces.reading import catalogue
from spaces.reading.search_section import read_search
from spaces.settings import Objective, Search, Training

EXAMPLE, TRANSFER = "quick/set_complement", "quick/transfer"


def page() -> str:
    """Return the language: sections, expressions, draws, and the fields of the sections that are no plug-ins."""
    named = ", ".join(f"`{section}`" for section in families())
    lines = [
        "# The language of spaces",
        "",
        "A space is a YAML file: a trial's configuration with distributions at some leaves. `study` names it; `group` "
        "and `trial` hold named values, drawn once for each group and once for each trial, which other leaves read as "
        f"`$name`. Plug-ins stand in {named}: a name alone, a mapping with `name` and fields, or `{{name: fields}}`. "
        "The last two stand in `search`.",
        "",
        f"The packaged space `{EXAMPLE}`, whole:",
        "",
        "```yaml",
        catalogue.read_text(EXAMPLE).rstrip(),
        "```",
        "",
        "## Expressions",
        "",
        *_docstring(inspect.getdoc(expressions) or ""),
        "",
        "## Draws",
        "",
        *_docstring(inspect.getdoc(distributions) or ""),
        "",
        "A draw can be written as a mapping, too: `{choice: [average, softmax]}`, whose options may be plug-ins with "
        "draws of their own; these are drawn only where their option is taken.",
        *_section("training", inspect.getdoc(Training), Training),
        *_section("search", inspect.getdoc(read_search), Search),
        "",
        "### search.objective",
        "",
        "Written `{minimize: METRIC/VARIANT}` or `{maximize: METRIC/VARIANT/CONDITION, at: last}`.",
        "",
        *_fields(Objective),
        "",
        "## transfer",
        "",
        f"A space with this section is a transfer of two stages. The packaged space `{TRANSFER}`, whole:",
        "",
        "```yaml",
        catalogue.read_text(TRANSFER).rstrip(),
        "```",
    ]
    return "\n".join(lines) + "\n"


def spaces_page() -> str:
    """Every packaged space with the comment at its head."""
    lines = ["# Packaged spaces", "", "`search launch NAME` runs one; `search space describe NAME` lists its draws."]
    for name in catalogue.packaged_spaces():
        head = [line.removeprefix("#").strip() for line in _comment(catalogue.read_text(name))]
        lines += ["", f"## {name}", "", prose(" ".join(head))]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line


def _docstring(text: str) -> Iterator[str]:
    """Yield the lines of a docstring, whose indented or aligned parts are shown as they are."""
    for paragraph in text.split("\n\n")[1:] or [text]:
        aligned = any("  " in line for line in paragraph.splitlines())
        body = textwrap.dedent(paragraph)
        yield from (["```text", body, "```", ""] if aligned else [prose(body), ""])


def _section(name: str, about: str | None, settings: type) -> Iterator[str]:
    yield from ("", f"## {name}", "", prose(about or ""), "")
    yield from _fields(settings)


def _fields(settings: type) -> Iterator[str]:
    said, ruled = _read_comments(settings), rules(settings)
    rows: list[list[str]] = []
    for one in dataclasses.fields(settings):
        missing = one.default is dataclasses.MISSING or one.default is REQUIRED
        default = "" if missing or one.default == () else code(one.default)
        if one.name in required_fields(settings):
            default = "required"
        rule = ruled[one.name].describe() if one.name in ruled else ""
        rows.append([code(one.name), prose(rule), default, prose(said.get(one.name, ""))])
    yield from table(["field", "rule", "default", "what it is"], rows)


def _read_comments(settings: type) -> Mapping[str, str]:
    """Field -> the text that stands below it in the source."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(settings))).body
    assert isinstance(definition, ast.ClassDef)
    return read_comments(definition.body)
