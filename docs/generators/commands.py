"""The page of commands, from the program itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cli.main import program
from docs.generators.tables import code, prose, table


def page() -> str:
    """Every command with its sentence, its example, its arguments and its options."""
    lines = [
        "# Commands",
        "",
        "`search COMMAND --help` says the same on a terminal. Options stand in any order; a mistake is one line on "
        "stderr that names the value, the rule and the choices, and exit status 2.",
    ]
    for name, command in commands():
        lines += ["", f"## search {name}", "", *_body(name, command)]
    return "\n".join(lines) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Name and command of every command, those of groups as `report study`; of groups those that do something alone."""
    waiting: list[tuple[str, Any]] = [("", program())]
    while waiting:
        prefix, group = waiting.pop(0)
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                waiting.append((f"{prefix}{name} ", command))
            if getattr(command, "invoke_without_command", True):
                yield f"{prefix}{name}", command


def _body(name: str, command: Any) -> Iterator[str]:
    text, _, example = (command.help or "").partition("Example:")
    yield prose(text)
    if example:
        yield from ("", "```sh", " ".join(example.split()), "```")
    arguments = [one for one in command.params if not one.opts[0].startswith("-")]
    words = [one.metavar or one.name.upper() for one in arguments]
    usage = [word if one.required else f"[{word}]" for word, one in zip(words, arguments, strict=True)]
    yield from ("", "Usage: " + code(" ".join(["search", name, *usage, "[OPTIONS]"])), "")
    rows = [[code(word), "", prose(one.help or "")] for word, one in zip(words, arguments, strict=True)]
    for one in command.params:
        if one not in arguments:
            value = "" if one.is_flag else f" {one.metavar or one.name.upper().strip('_')}"
            rows.append([code(", ".join(one.opts) + value), _default(one), prose(one.help or "")])
    yield from table(["argument or option", "default", "what it is"], rows)


def _default(option: Any) -> str:
    """Return what holds where the option is not given: an environment variable, then a value, both as code."""
    if option.required:
        return "required"
    # A text in place of the default says what it means; True asks typer to show the default itself.
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    value = "" if shown is None or option.is_flag else code(shown)
    variable = code(f"${option.envvar}") if option.envvar else ""
    return ", else ".join(filter(None, (variable, value)))
