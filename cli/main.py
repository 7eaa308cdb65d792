"""The program `search`: commands, and the one gate through which errors reach a person."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from cli.commands import (
    administration,
    dashboard,
    database,
    doctor,
    evaluate,
    launch,
    optuna_dashboard,
    plugins,
    queries,
    replay,
    reports,
    serve,
    space,
    weights,
)
from graft.launching.process.memory_limits import describe_shortage
from spaces.errors import GraftError
from spaces.plugins.importing import explain

# Polars' allocator keeps what was freed for a while, for the next operation: a report would take half as much again.
# It reads this when it is loaded, which no command has done yet.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")

app = typer.Typer(
    name="search",
    help="Hyperparameter search and meta-learning for tiny transformers, thousands of trials packed on each device.",
    pretty_exceptions_enable=False,
)
_METAVARS: dict[object, str] = {
    int: "N", list[int]: "N...", float: "X", str: "", Path: "", list[str]: "", list[Path]: "",
}  # fmt: skip
"""The type of a value -> the word for it; empty: the name of the argument or option."""
_COMMANDS = (
    *(launch, serve, queries, administration, replay, space, plugins, reports, dashboard, optuna_dashboard),
    *(weights, evaluate, database, doctor),
)  # fmt: skip
for module in _COMMANDS:
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from graft.plugins.families import version

        typer.echo(f"graft {version()}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version of Graft.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options that stand before the command."""
    _Gate.debug = debug


@cache
def program() -> Any:
    """The program's commands with their arguments and options, each value with a word that says what it is."""
    whole = get_command(app)
    waiting: list[Any] = [whole]
    while waiting:
        one = waiting.pop()
        waiting += getattr(one, "commands", {}).values()
        for parameter in (*one.params, one.get_help_option(one.context_class(one))):
            kind = parameter.type_descriptor.annotation
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.metavar is None and kind in _METAVARS:
                parameter.metavar = _METAVARS[kind] or parameter.name.upper().strip("_")
    return whole


class _Gate:
    """Whether errors keep their traceback."""

    debug = False


def main() -> None:
    """Run the program; an error of ours, or in how it was called, is one line on stderr and exit status 2."""
    try:
        status = program()(sys.argv[1:] or ["--help"], prog_name="search", standalone_mode=False)
    except GraftError as error:
        if _Gate.debug:
            raise
        _refuse(str(error))
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "search"
        _refuse(f"{error.format_message().rstrip('.')}; see `{command} --help`")
    except Exception as error:
        told = describe_shortage(error) or explain(
            error
        )  # what goes wrong in a plug-in of the user's is theirs to mend, in a line
        if told is None or _Gate.debug:
            raise
        _refuse(str(told))
    sys.exit(status)


def _refuse(reason: str) -> NoReturn:
    from graft.files import one_line

    print(f"error: {' '.join(one_line(reason).split())}", file=sys.stderr)
    sys.exit(2)
