"""Where the checkpoints of a launch go: `--checkpoints` and `--checkpoint-every`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storage import file_of

if TYPE_CHECKING:
    from workers.pool import Saving

NOWHERE = "none"

Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER|URL|none",
        help="Where checkpoints go; all workers must reach it. Default: beside a SQLite file, else none.",
    ),
]
CheckpointEvery = Annotated[float, typer.Option(min=1, help="Seconds between checkpoints of a pack.")]
SECONDS = 600.0


def placed(place: str | None) -> str | None:
    """What `--checkpoints` means wherever a worker runs: a URL, `none`, or a folder that does not depend on where."""
    if place is None or place == NOWHERE or ("://" in place and not place.startswith("file://")):
        return place
    return str(Path(place.removeprefix("file://")).absolute())


def saving_of(url: str, study: Mapping[str, Any], place: str | None, seconds: float) -> Saving | None:
    """Where a study's checkpoints go; None: nowhere, so that a trial whose worker dies starts from step 0.

    `study`: its row, which says where they went before; `place`: what was asked for now. The folder of a study is its
    own, also where studies of other databases have its name.
    """
    from workers.pool import Saving

    file = file_of(url)
    default = f"{file}-checkpoints" if file else NOWHERE
    where: str = place or study["checkpoints"] or default
    mark = hashlib.sha256(f"{study['created_at']} {study['space_hash']}".encode()).hexdigest()[:8]
    return None if where == NOWHERE else Saving(where, f"{study['name']}-{mark}", seconds)
