"""The command group db: upgrade a database, check it, back it up, copy it into another one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.options import NestedFormat, Storage, database_name, storage_url
from cli.tables import show_json, show_text

BROKEN = 1
"""Exit status of `check` if something is broken."""


def register(app: typer.Typer) -> None:
    """Add the command group `db` to the program."""
    group = typer.Typer(no_args_is_help=True)
    for command in (upgrade, check, backup, copy):
        group.command()(command)
    app.add_typer(group, name="db", help="Upgrade, check, back up and copy databases.")


def upgrade(
    storage: Storage = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    form: NestedFormat = "table",
) -> None:
    """Bring an older database to this Graft's schema, in one transaction; not while a study runs.

    Example: search db upgrade --storage graft.db
    """
    from storage.upgrading import migrate_if_older, pending_migrations

    url = storage_url(storage)
    schema, steps = pending_migrations(url)
    if steps:
        typer.echo("\n".join([f"{database_name(url)}: schema {schema}, to be brought up by", *steps]), err=True)
    else:
        typer.echo(f"{database_name(url)}: schema {schema}, nothing to do", err=True)
    if steps and not dry_run:
        migrate_if_older(url)
        typer.echo(f"{database_name(url)}: done", err=True)
    if form == "json":
        done = bool(steps) and not dry_run
        show_json({"format": 1, "database": database_name(url), "schema": schema, "steps": steps, "done": done})


def check(storage: Storage = None, form: NestedFormat = "table") -> None:
    """Check a database's file and the rules of its rows. Exit status 1 if one is broken.

    Example: search db check --storage graft.db
    """
    from spaces.messages import one_line
    from storage.checking import check as check_database

    url = storage_url(storage)
    verdict = check_database(url)
    if form == "json":
        good = not verdict.faults
        show_json({"format": 1, "database": database_name(url), "good": good, **asdict(verdict)})
    else:
        lines = [*(f"broken: {fault}" for fault in verdict.faults), *(f"note: {note}" for note in verdict.notes)]
        word = "broken" if verdict.faults else "good"
        show_text("\n".join(map(one_line, [*lines, f"{database_name(url)}: {word}, {verdict.rules} rules looked at"])))
    if verdict.faults:
        raise typer.Exit(BROKEN)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new SQLite file.")], storage: Storage = None
) -> None:
    """Write a whole database, as of one moment, to a new SQLite file; launches may go on.

    Example: search db backup graft-2026-11-21.db
    """
    from storage.copying import backup as back_up

    target = back_up(storage_url(storage), file.absolute())
    typer.echo(f"{target}: {target.stat().st_size:,} bytes", err=True)


def copy(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A database, as for --storage.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="Another one; a SQLite file is created.")],
    study: Annotated[str | None, typer.Option(help="Only this study.")] = None,
) -> None:
    """Copy studies to another database, each whole or not at all; repeat it to do what is left.

    Example: search db copy graft.db postgresql://me@host/graft --study set-complement
    """
    from storage.copying import copy as copy_studies

    for copied in copy_studies(storage_url(source), storage_url(target), study):
        size = f"{copied.trials:,} trials and {copied.metrics:,} metrics"
        typer.echo(f"{copied.name}: {size} {'copied' if copied.new else 'are there already, the same'}", err=True)
