"""Options that several commands share."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spaces.errors import GraftError

if TYPE_CHECKING:
    from graft.retraining.restored import RestoredTrial
    from spaces.plugins.bundles import Outside
    from storage.frames import Reader

_PASSWORD = re.compile(r"[^/]*:[^/]*@")
DEFAULT_STORAGE = "sqlite:///graft.db"
STORAGE_VARIABLE = "SEARCH_STORAGE"
FORMATS = ("table", "csv", "json", "parquet", "md")


class OptionError(GraftError):
    """An option or an argument of the command line has a value that cannot be used."""


def check_format(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Return a check of --format that lets `choices` pass, and parquet only where no terminal would show it."""

    def check(form: str) -> str:
        if form not in choices:
            raise OptionError(f"--format: {form!r} must be one of {', '.join(choices)}")
        if form == "parquet" and sys.stdout.isatty():
            raise OptionError("--format parquet is not for terminals; send it to a file: search ... > trials.parquet")
        return form

    return check


Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        envvar=STORAGE_VARIABLE,
        show_default=DEFAULT_STORAGE,
        help="The database: sqlite:///FILE, a plain FILE, or postgresql://USER@HOST/DATABASE.",
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="|".join(FORMATS), callback=check_format(FORMATS), help="How to write the answer."
    ),
]
NestedFormat = Annotated[
    str,
    typer.Option("--format", metavar="table|json", callback=check_format(("table", "json")), help="For whom to write."),
]
Study = Annotated[str, typer.Argument(help="Name of the study.")]
RetrainingDevice = Annotated[
    str | None,
    typer.Option("--device", help="cpu, cuda or cuda:N. Default: the kind of device that trained the trial."),
]
AcceptDataChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Train on files of data as they are now, though they have changed."),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugins",
        metavar="FILE|MODULE",
        help="Plug-ins of yours beside those that the space asks for: ./mine.py, a folder, package.module; repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class RetrainingOptions:
    """Where a stored trial is found, and on what it is trained again."""

    storage: Storage = None
    device: RetrainingDevice = None
    accept_changes: AcceptDataChanges = False


Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


ASKED: list[str] = []
"""The databases that the command has named so far, the last one last."""


def storage_url(storage: str | None) -> str:
    """Return the URL that --storage means: a bare path is a SQLite file, nothing is graft.db in the working
    directory.

    A password in it is warned of, unless the URL comes from the environment.
    """
    url = storage or DEFAULT_STORAGE
    if not url.isprintable() or _PASSWORD.match(url):  # a URL without its start: not shown, it may hold a password
        raise OptionError("--storage: use sqlite:///FILE, a plain FILE, or postgresql://USER@HOST/DATABASE")
    if "://" in url and not url.startswith("sqlite:///"):
        _warn_of_password(url)
    else:  # absolute, since a controller on a cluster may run in another folder
        url = f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}"
    ASKED.append(url)
    return url


def _warn_of_password(url: str) -> None:
    from storage import has_password

    if has_password(url) and url != os.environ.get(STORAGE_VARIABLE):
        typer.echo(
            "note: others can read a password in --storage in the list of processes; leave it out, and put it into "
            f"~/.pgpass, a file that PGPASSFILE names, PGPASSWORD, or the whole URL into {STORAGE_VARIABLE}",
            err=True,
        )


def database_name(url: str) -> str:
    """Return a database's name for messages: without its password; raises StorageError for a URL of another kind."""
    from storage.databases import find_database

    return find_database(url).name


def check_output(path: Path, force: bool) -> None:
    """Raise OptionError unless a file may be written to `path`; one that exists only by --force."""
    if not path.parent.is_dir():
        raise OptionError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise OptionError(f"{path} exists; overwrite it with --force, or name another file")


def say_changes(study: str, outside: Outside) -> None:
    """Say in a line, if so, that a file of the study's plug-ins is no longer what is stored, and is not run."""
    from graft.plugins.stored import describe_changes

    if note := describe_changes(study, outside):
        typer.echo(f"note: {note}", err=True)


def say_restored(study: str, restored: RestoredTrial) -> None:
    """Say in a line each what a trial that is trained again had otherwise: files of data, and of plug-ins."""
    say_data_changes(restored)
    say_changes(study, restored.outside)


def say_data_changes(restored: RestoredTrial) -> None:
    """Say in a line each which files a trial had otherwise that is trained again on them as they are now."""
    for change in restored.data_changes:
        typer.echo(f"note: trial {restored.trial.number} is trained again on other data: {change}", err=True)


def say_look(reader: Reader, study: str, command: str) -> None:
    """Record that a command shows interim results of a study with a claim, and say so in a line."""
    from graft.stored.claims import note_look

    if note := note_look(reader, ASKED[-1], study, command):
        typer.echo(f"note: {note}", err=True)


def say_notes(notes: Iterable[str]) -> None:
    """Say in a line each, on stderr, what a person may not have meant."""
    from spaces.messages import one_line

    for note in notes:
        typer.echo(f"note: {one_line(note)}", err=True)
