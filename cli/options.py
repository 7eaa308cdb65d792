"""Options that several commands share."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spaces.errors import GraftError

if TYPE_CHECKING:
    from graft.retraining.restored import RestoredTrial
    from spaces.plugins.bundles import Outside
    from storage.frames import Reader
    from workers.engine.trained_model import TrainedModel

_PASSWORD = re.compile(r"[^/]*:[^/]*@")
DEFAULT_STORAGE = "sqlite:///graft.db"
STORAGE_VARIABLE = "SEARCH_STORAGE"
FORMATS = ("table", "csv", "json", "parquet", "md")
PAGES = (".html", ".md")
"""Endings of the pages that reports write."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, SIGTERM or SIGHUP."""


class OptionError(GraftError):
    """An option or an argument of the command line has a value that cannot be used."""


def check_format(choices: tuple[str, ...]) -> Callable[[str], str]:
    """Return a check of --format: one of `choices`, and no parquet on a terminal."""

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
Number = Annotated[int, typer.Argument(help="Number of the trial.")]
PAGE = typer.Option("--output", "-o", help="FILE.html, or FILE.md with its figures beside it.")
AllowedPlugins = Annotated[
    list[str] | None,
    typer.Option(metavar="ENTRY", help="An entry of `plugins:` that a submitted space may have; repeatable."),
]
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
    """The database of a stored trial, and the device that trains it again."""

    storage: Storage = None
    device: RetrainingDevice = None
    accept_changes: AcceptDataChanges = False

    def restore(self, study: str, number: int) -> RestoredTrial:
        """Return a stored trial, ready to be trained again; raises as `restore_trained` does."""
        from graft.retraining.weights import restore_trained

        url = storage_url(self.storage)
        return restore_trained(url, study, number, self.device, accept_changes=self.accept_changes)

    def train(self, study: str, number: int, step: int | None = None) -> TrainedModel:
        """Train a stored trial again, to `step` or to its own end, and return its model."""
        from graft.retraining.weights import train_model

        url, accept = storage_url(self.storage), self.accept_changes
        return train_model(url, study, number, variant="raw", step=step, device=self.device, accept_changes=accept)


Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


def user_name() -> str:
    """Return the name of the person who calls the program; the number of one without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return str(os.getuid())


ASKED: list[str] = []
"""The databases that the command has named so far, the last one last."""


def storage_url(storage: str | None) -> str:
    """Return the URL of --storage: a bare path is a SQLite file, None is ./graft.db.

    A password in the URL causes a warning, unless the URL comes from the environment.
    """
    url = storage or DEFAULT_STORAGE
    # A URL without its start is not shown, since it may have a password.
    if not url.isprintable() or _PASSWORD.match(url):
        raise OptionError("--storage: use sqlite:///FILE, a plain FILE, or postgresql://USER@HOST/DATABASE")
    if "://" in url and not url.startswith("sqlite:///"):
        from storage import has_password

        if has_password(url) and url != os.environ.get(STORAGE_VARIABLE):
            typer.echo(
                "note: others can read a password in --storage in the list of processes; leave it out, and put it into "
                f"~/.pgpass, a file that PGPASSFILE names, PGPASSWORD, or the whole URL into {STORAGE_VARIABLE}",
                err=True,
            )
    else:  # absolute, since a controller on a cluster may run in another folder
        url = f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}"
    ASKED.append(url)
    return url


def open_db(storage: str | None, seconds: float | None = None) -> Reader:
    """Return a reader of the database of --storage; see `open_reader`."""
    from storage.frames import open_reader

    return open_reader(storage_url(storage), seconds)


def current_url(storage: str | None) -> str:
    """Return the URL of an existing database after migrating it to this program's schema."""
    from storage import migrate_if_older

    url = storage_url(storage)
    migrate_if_older(url)
    return url


def database_name(url: str) -> str:
    """Return a database's name without a password; raises StorageError for an unknown kind."""
    from storage.databases import find_database

    return find_database(url).name


def check_output(path: Path, force: bool, endings: Sequence[str] = ()) -> None:
    """Raise OptionError unless the path, of one of the `endings` if any, can be written to."""
    if endings and path.suffix not in endings:
        raise OptionError(f"{path}: the ending must be one of {', '.join(endings)}")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file in it")
    if path.exists() and not force:
        raise OptionError(f"{path} exists; overwrite it with --force, or name another file")


def split_assignment(assignment: str, example: str) -> tuple[str, str]:
    """Return path and YAML value of a --set; raises OptionError, which shows the example."""
    path, equals, value = assignment.partition("=")
    if not equals or not path.strip():
        raise OptionError(f"--set {assignment}: write path=value, for example --set {example}")
    return path.strip(), value


def say_changes(study: str, outside: Outside) -> None:
    """Report a file of the study's plug-ins that differs from the stored one, which is run."""
    from graft.plugins.stored import describe_changes

    if note := describe_changes(study, outside):
        typer.echo(f"note: {note}", err=True)


def say_restored(study: str, restored: RestoredTrial) -> None:
    """Report each file of data and of plug-ins that has changed since a trial was trained."""
    say_data_changes(restored)
    say_changes(study, restored.outside)


def say_data_changes(restored: RestoredTrial) -> None:
    """Report each file of data that has changed since a trial was trained."""
    for change in restored.data_changes:
        typer.echo(f"note: trial {restored.trial.number} is trained again on other data: {change}", err=True)


def say_look(reader: Reader, study: str, command: str) -> None:
    """Record and report that a command shows interim results of a study with a claim."""
    from graft.stored.claims import note_look

    if note := note_look(reader, ASKED[-1], study, command):
        typer.echo(f"note: {note}", err=True)


def say_notes(notes: Iterable[str]) -> None:
    """Write each note as a line to stderr."""
    from spaces.messages import one_line

    for note in notes:
        typer.echo(f"note: {one_line(note)}", err=True)
