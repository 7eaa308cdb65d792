"""The command optuna-dashboard: the studies of a database in Optuna's own pages."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from cli.options import Storage, storage_url


def optuna_dashboard(
    port: Annotated[int, typer.Option(min=0, max=65535, help="On this machine alone; 0: any that is free.")] = 8080,
    storage: Storage = None,
) -> None:
    """Serve optuna-dashboard over a database, read-only, while its studies run; Ctrl-C ends it.

    Of each study it has the 5,000 best and newest trials. It needs the extra `optuna`.

    Example: search optuna-dashboard --port 8080
    """
    from graft.exports.interchange.optuna_studies import open_storage
    from graft.exports.interchange.wsgi_server import open_server
    from search.optuna_view.dashboard import open_dashboard

    with open_server(open_dashboard(open_storage(storage_url(storage))), port) as server:
        typer.echo(f"http://{server.server_name}:{server.server_port}/dashboard (Ctrl-C ends it)", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
