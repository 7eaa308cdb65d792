"""Commands on a study that exists: enqueue, note, tag, rename, archive, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import OptionError, Storage, Study, current_url, split_assignment
from spaces.messages import shorten_numbers


def enqueue(
    study: Study,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="A value of the trial; repeatable.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Many trials: paths in the first line, a trial in each other.")
    ] = None,
    storage: Storage = None,
) -> None:
    """Add trials of your choice to a study, for `search resume`; its sampler draws other values.

    Example: search enqueue tiny --set optimizer.learning_rate=0.003 --set model.residual_dropout=0
    """
    from graft.launching.editing.enqueueing import enqueue as enqueue_trials
    from graft.launching.editing.enqueueing import parse_value, read_settings

    if csv and values:
        raise OptionError("--csv: a file says all values of its trials; leave out --set")
    by_hand: dict[str, Any] = {}
    for assignment in values or ():
        path, value = split_assignment(assignment, "optimizer.learning_rate=0.01")
        by_hand[path] = parse_value(value)
    settings = read_settings(csv) if csv else [by_hand]
    numbers = enqueue_trials(current_url(storage), study, settings)
    trials = f"trial{'s' * (len(numbers) > 1)} {shorten_numbers(numbers)}"
    typer.echo(f"{study}: {trials} added; train with `search resume {study}`", err=True)


def note(
    study: Study,
    text: Annotated[str, typer.Argument(help="The note; '' removes it.")],
    storage: Storage = None,
) -> None:
    """Write a note about a study, in place of the one that it has; `search status` shows it.

    Example: search note set-complement "with the corrected mask"
    """
    from graft.launching.editing.administration import write_note

    write_note(current_url(storage), study, text)


def tag(
    study: Study,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG...]", help="Tags to add.")] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag to remove; repeatable.")] = None,
    storage: Storage = None,
) -> None:
    """Add and remove tags of a study; `search studies --tag` lists the studies that have one.

    Example: search tag set-complement paper --remove draft
    """
    from graft.launching.editing.administration import tag_study

    all_tags = tag_study(current_url(storage), study, tags or (), remove or ())
    words = f"tags {', '.join(all_tags)}" if all_tags else "no tags"
    typer.echo(f"{study}: {words}", err=True)


def rename(study: Study, name: Annotated[str, typer.Argument(help="The new name.")], storage: Storage = None) -> None:
    """Give a study another name; not while it runs.

    Example: search rename set-complement set-complement-2
    """
    from graft.launching.editing.administration import rename_study

    rename_study(current_url(storage), study, name)
    typer.echo(f"{study} is now {name}", err=True)


def archive(
    study: Study,
    undo: Annotated[bool, typer.Option("--undo", help="Take it out again.")] = False,
    storage: Storage = None,
) -> None:
    """Put a study into the archive, which `search studies` lists only with --all.

    Example: search archive set-complement
    """
    from graft.launching.editing.administration import archive_study

    archive_study(current_url(storage), study, archived=not undo)


def delete(
    study: Study,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    storage: Storage = None,
) -> None:
    """Delete a study with its trials, metrics and checkpoints; asks first. Not while it runs.

    Example: search delete set-complement --yes
    """
    from graft.launching.editing.administration import delete_study
    from storage import open_reader

    url = current_url(storage)
    with open_reader(url) as reader:
        count = sum(reader.study(study).counts().values())
    if not yes:
        if not sys.stdin.isatty():
            raise OptionError(f"delete asks on a terminal alone; say --yes to delete {study} with {count:,} trials")
        if not typer.confirm(f"Delete study {study} with {count:,} trials, their metrics and checkpoints?"):
            return
    delete_study(url, study)
    typer.echo(f"{study} and its {count:,} trials are deleted", err=True)
