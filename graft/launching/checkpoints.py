"""The folder of a run's checkpoints, and the time between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage import file_of

if TYPE_CHECKING:
    from workers.pool import Saving

NOWHERE = "none"


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints that a run is asked for."""

    url: str | None
    """A folder, a URL that fsspec knows, or `none`. None: as before, else beside a SQLite file."""
    seconds: float
    """The most seconds between two checkpoints of a pack; they may take one percent of the time."""

    def absolute_url(self) -> str | None:
        """Return the URL in a form that does not depend on a worker's working folder."""
        url = self.url
        if url is None or url == NOWHERE or ("://" in url and not url.startswith("file://")):
            return url
        return str(Path(url.removeprefix("file://")).absolute())

    def saving(self, database: str, study: Mapping[str, Any]) -> Saving | None:
        """Return where and how often the workers of a study, given its row, save checkpoints.

        The folder differs from those of other databases. With None, a crash restarts a trial from
        step 0.
        """
        from workers.pool import Saving

        file = file_of(database)
        default = f"{file}-checkpoints" if file else NOWHERE
        url: str = self.absolute_url() or study["checkpoints"] or default
        if url == NOWHERE:
            return None
        return Saving(url, folder_of(study), self.seconds)


def folder_of(study: Mapping[str, Any]) -> str:
    """Return the folder of a study's checkpoints, given its row; another name or space keeps it."""
    if study["checkpoint_folder"]:
        return study["checkpoint_folder"]
    mark = hashlib.sha256(f"{study['created_at']} {study['space_hash']}".encode()).hexdigest()[:8]
    return f"{study['name']}-{mark}"
