"""The program `search`: commands, and the one gate through which errors reach a person."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from cli.commands import database, launch, plugins, queries, replay, reports, space, weights
from graft.launching.memory_limits import describe_shortage
from spaces.errors import GraftError
from spaces.plugins.importing import explain

app = typer.Typer(
    name="search",
    help="Hyperparameter search and meta-learning for tiny transformers, thousands of trials packed on each device.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (launch, queries, replay, space, plugins, reports, weights, database):
    module.register(app)


@app.callback()
def options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Options that stand before the command."""
    _Gate.debug = debug


class _Gate:
    """Whether errors keep their traceback."""

    debug = False


def main() -> None:
    """Run the program; an error of ours, or in how it was called, is one line on stderr and exit status 2."""
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="search", standalone_mode=False)
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
