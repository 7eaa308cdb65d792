"""The program `search`: commands, and the one gate through which errors reach a person."""

from __future__ import annotations

import errno
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
    advise,
    claim,
    comparing,
    dashboard,
    database,
    doctor,
    evaluate,
    launch,
    learn,
    mcp,
    optuna_dashboard,
    plugins,
    queries,
    replay,
    reports,
    serve,
    space,
    weights,
)
from cli.option_groups import with_groups
from cli.options import ASKED
from graft.launching.process.memory_limits import describe_shortage
from spaces.bounds import LARGEST_COUNT
from spaces.errors import GraftError
from spaces.messages import one_line
from spaces.plugins.importing import explain

# Polars' allocator keeps freed memory for a while: a report would take half as much again. Polars
# reads this when it is loaded, which no command has done yet.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")

app = typer.Typer(
    name="search",
    help="Hyperparameter search and meta-learning for tiny transformers, thousands of trials packed on each device.",
    pretty_exceptions_enable=False,
)
_METAVARS: dict[object, str] = {
    int: "N", list[int]: "N...", float: "X", str: "", Path: "", list[str]: "", list[Path]: "",
}  # fmt: skip
"""The type of a value -> the word for it; empty for the name of the argument or option."""
_COMMANDS = (
    *(launch.launch, launch.resume, launch.stop, launch.retry, advise.advise, learn.learn, claim),
    *(comparing.compare, comparing.leaderboard, serve, mcp.mcp, queries),
    *(administration.enqueue, administration.note, administration.tag, administration.rename),
    *(administration.archive, administration.delete, replay.replay, space, plugins, reports),
    *(dashboard, optuna_dashboard.optuna_dashboard, weights.weights, weights.refit, evaluate.evaluate),
    *(database, doctor.doctor),
)  # fmt: skip
"""The commands, and modules that register groups, in the order of `search --help`."""
for entry in _COMMANDS:
    if callable(entry):
        app.command()(with_groups(entry))
    else:
        entry.register(app)


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
    """Return the program's commands with their options, and give each value's type a word."""
    whole = get_command(app)
    waiting: list[Any] = [whole]
    while waiting:
        command = waiting.pop()
        waiting += getattr(command, "commands", {}).values()
        for parameter in (*command.params, command.get_help_option(command.context_class(command))):
            kind = parameter.type_descriptor.annotation
            if kind in (int, list[int]) and parameter.type_descriptor.parameter_info.max is None:
                parameter.type_descriptor.parameter_info.max = LARGEST_COUNT  # more fails in SQL
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
            elif parameter.metavar is None and kind in _METAVARS:
                parameter.metavar = _METAVARS[kind] or parameter.name.upper().strip("_")
    return whole


class _Gate:
    """The option `--debug` of this call."""

    debug = False


def main() -> None:
    """Run the program; a GraftError or a wrong call is one line on stderr and exit status 2."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by who started the program: `search studies >&-`
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
    try:
        status = program()(sys.argv[1:] or ["--help"], prog_name="search", standalone_mode=False)
    except GraftError as error:
        if _Gate.debug:
            raise
        _refuse(str(error))
    except TyperException as error:
        _refuse(_describe_misuse(error))
    except Exception as error:
        message = _explain(error)
        if message is None or _Gate.debug:
            raise
        _refuse(message)
    sys.exit(status)


def _describe_misuse(error: TyperException) -> str:
    """Describe a wrong call of the program, with the wrong value."""
    context: Any = getattr(error, "ctx", None)
    message = error.format_message().strip().rstrip(".")
    if not message:  # a group without a command, whose help has been shown
        return f"{context.command_path} needs a command, one of {', '.join(context.command.commands)}"
    if errors := getattr(error.__cause__, "errors", None):  # pydantic's, which keep the value to themselves
        message = message.replace("Input should", f"{errors()[0]['input']!r} should")
    see = f"see `{context.command_path if context else 'search'} --help`"
    return f"{message} {see.capitalize()}" if message.endswith("?") else f"{message}; {see}"


def _explain(error: Exception) -> str | None:
    """Return a line for an error that is no fault of Graft; None for any other error."""
    if shortage := describe_shortage(error):
        return shortage
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error.filename or 'stdout'} cannot be written: {error.strerror}"
    if fault := explain(error):  # an error in a plug-in of the user's
        return str(fault)
    if not ASKED:
        return None
    from storage.checking import describe_damage

    return describe_damage(ASKED[-1])  # rows that were edited by hand


def _refuse(reason: str) -> NoReturn:
    print(f"error: {' '.join(one_line(reason).split())}", file=sys.stderr)
    sys.exit(2)
