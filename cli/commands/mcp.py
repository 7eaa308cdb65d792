"""The command mcp: the tools by which programs work with a database, over stdio."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cli.commands.serve import TOKEN_VARIABLE
from cli.options import AllowedPlugins, OptionError, Storage, storage_url


def mcp(
    allow_plugins: AllowedPlugins = None,
    allow_resource: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A field that may name a file, as task.corpus.path; repeatable."),
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="As of `search dashboard`, for the role submit; repeatable."),
    ] = None,
    storage: Storage = None,
) -> None:
    """Give programs tools by the Model Context Protocol over stdio: check, submit, watch ...

    A program may do what you may, or what the token in SEARCH_TOKEN may. What it submits is trained
    by `search serve`.

    Example: search mcp --allow-plugins ./mine.py
    """
    url = storage_url(storage)
    try:
        from graft.web.server import plan_settings
        from graft.web.settings import Quotas, Settings
        from graft.web.tools.server import serve_stdio
    except ModuleNotFoundError as error:
        raise OptionError(f"{error.name} is not installed; pip install 'graft-search[mcp]'") from None
    settings = Settings(
        database=url,
        plugins=frozenset(allow_plugins or ()),
        resources=frozenset(allow_resource or ()),
        quotas=Quotas.parse(quota or ()),
    )
    serve_stdio(plan_settings(settings, "localhost"), os.environ.get(TOKEN_VARIABLE))
