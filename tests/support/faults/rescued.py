"""The program whose database goes while it writes, and whose power is cut once it has told where all that it held is.

    python -m tests.support.faults.rescued FOLDER KIND

The line that tells it is in the file `answered`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from spaces.errors import StorageError
from storage import open_store
from storage.databases.disk import synchronise
from tests.support.faults.power import ANSWERED
from tests.support.queue import STUDY

KINDS = ("deleted", "moved")
"""The file of the database is deleted; or its folder is moved away, so that the rescue goes among temporary files."""


def run(folder: Path, kind: str) -> None:
    """Lose the database in a transaction, and write down where the rescue is."""
    home, temporary = folder / "home", folder / "tmp"
    for made in (home, temporary):
        made.mkdir()
    synchronise(folder)  # these two were there long before
    tempfile.tempdir = str(temporary)
    answered = (folder / ANSWERED).open("w")
    with open_store(f"sqlite:///{home}/graft.db") as store:
        if kind == "deleted":
            (home / "graft.db").unlink()
        else:
            home.rename(folder.with_name("elsewhere"))
        try:
            store.create_study(STUDY)
        except StorageError as error:
            answered.write(str(error))
            answered.flush()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
