"""The command dashboard, which serves a database over HTTP, and the group token for its access."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Annotated

import typer

from cli.option_groups import HttpOptions, with_groups
from cli.options import Format, Storage, current_url, storage_url
from cli.tables import show, show_text


def register(app: typer.Typer) -> None:
    """Add the command `dashboard` and the group `token` to the program."""
    app.command()(with_groups(dashboard))
    group = typer.Typer(no_args_is_help=True)
    group.command("make")(make)
    group.command("list")(list_tokens)
    group.command("revoke")(revoke)
    app.add_typer(group, name="token", help="Make, list and revoke the tokens of clients that come over HTTP.")


def dashboard(
    *,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where to listen. Any address but loopback needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    http: HttpOptions,
    storage: Storage = None,
) -> None:
    """Show the studies and the queue of a database over HTTP; it trains nothing.

    Example: search dashboard --port 8765
    """
    # Each of Polars' threads takes a core from training; it reads this when it is loaded, below.
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    settings = http.settings(storage_url(storage), host)
    from graft.web.server import serve

    with suppress(KeyboardInterrupt):
        serve(settings, host, port, lambda address: typer.echo(f"{address} (Ctrl-C ends it)", err=True))


def make(
    name: Annotated[str, typer.Argument(help="For whom, or for what; the log names it.")],
    role: Annotated[str, typer.Option(metavar="read|submit|admin", help="What it may do.")] = "read",
    days: Annotated[float | None, typer.Option(help="Days after which it expires. Default: never.")] = None,
    storage: Storage = None,
) -> None:
    """Make a token and print it; the database keeps only a digest, so it is never shown again.

    Example: search token make lab-notebook --role read
    """
    from graft.web.security.access import make_token

    seconds = None if days is None else days * 86_400
    show_text(make_token(storage_url(storage), name, role, seconds))


def list_tokens(storage: Storage = None, form: Format = "table") -> None:
    """List the tokens, those that were revoked too.

    Example: search token list
    """
    import polars as pl

    from graft.web.security.access import read_tokens
    from storage.tokens import Token

    time = pl.Datetime("us")
    schema = dict(zip(Token._fields, (pl.String(), pl.String(), time, time, time), strict=True))
    show(pl.DataFrame(read_tokens(storage_url(storage)), schema=schema, orient="row"), form)


def revoke(name: Annotated[str, typer.Argument(help="Name of the token.")], storage: Storage = None) -> None:
    """Revoke a token at once, while a service or a launch runs, too; open streams end.

    Example: search token revoke lab-notebook
    """
    from storage import revoke_token

    revoke_token(current_url(storage), name)
    typer.echo(f"{name} opens nothing any more", err=True)
