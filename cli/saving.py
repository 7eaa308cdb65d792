"""Where the checkpoints of a launch go: `--checkpoints` and `--checkpoint-every`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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


def saving_of(url: str, study: str, place: str | None, seconds: float) -> Saving | None:
    """Where a study's checkpoints go; None: nowhere, so that a trial whose worker dies starts from step 0."""
    from workers.pool import Saving

    file = file_of(url)
    place = place or (f"{file}-checkpoints" if file else NOWHERE)
    return None if place == NOWHERE else Saving(place, study, seconds)
