"""Loggers of experiments that people have, written after the fact."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

from graft.exports.interchange.extras import require_extra
from graft.exports.interchange.logged_trials import read_logged
from graft.files import OutputError, writing
from storage.frames import open_reader


def export_logged(url: str, study: str, to: str, folder: Path, *, where: str | None = None, top: int) -> int:
    """Write the best trials of a study, at most `top`, for the logger `to`; return how many.

    A logger is a module of this package with `write`; the extra of its name has its PACKAGE.
    `folder` must not exist, or be empty; an error leaves none. Raises OutputError, and StudyError
    where the logger is not installed or no trial has an objective.
    """
    logger: Any = importlib.import_module(f"graft.exports.interchange.{to}")
    require_extra(logger.PACKAGE, to)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} exists and is not empty; name another folder")
    with open_reader(url) as reader, reader.moment():
        trials = list(read_logged(reader, study, where, top))
    with writing(folder):
        folder.mkdir(exist_ok=True)
        try:
            return logger.write(trials, folder.absolute(), study)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
