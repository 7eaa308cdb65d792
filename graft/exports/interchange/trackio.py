"""Chosen trials as runs of Trackio: one SQLite file for the study, in its TRACKIO_DIR."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graft.exports.interchange.logged_trials import LoggedTrial
from spaces.errors import StudyError

PACKAGE = "trackio"


def write(trials: Iterable[LoggedTrial], folder: Path, study: str) -> int:
    """Write one run for each trial into the project `study`; return how many.

    Trackio takes its folder from the environment when it is imported, so a process writes to one.
    Raises StudyError where it was imported for another.
    """
    os.environ["TRACKIO_DIR"] = str(folder)
    utils = importlib.import_module("trackio.utils")
    if Path(utils.TRACKIO_DIR) != folder:
        raise StudyError(f"trackio writes to {utils.TRACKIO_DIR} in this process; start another for {folder}")
    storage: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    count = 0
    for trial in trials:
        storage.bulk_log(
            project=study,
            run=trial.name,
            metrics_list=[dict(values) for _, values in trial.validations],
            steps=[step for step, _ in trial.validations],
            timestamps=[trial.started.isoformat() for _ in trial.validations],
            config={**trial.config, **trial.params, **trial.facts},
        )
        count += 1
    return count
