"""A study's trials and metrics as files for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from graft.files import write, writing
from graft.stored.params import renew_params
from graft.stored.trials import unpack_params
from storage.frames import Reader


def metrics_file(output: Path) -> Path:
    """`trials.metrics.csv` beside `trials.csv`."""
    return output.with_name(f"{output.stem}.metrics{output.suffix}")


def export_study(reader: Reader, study: str, output: Path) -> Mapping[Path, int]:
    """Write the trials to `output`, params as columns, and the metrics beside it; rows of each file.

    The ending, .parquet, .csv or .json, says in which format.
    """
    trials = renew_params(reader, study, reader.trials(study))
    frames = {output: unpack_params(trials), metrics_file(output): reader.metrics(study)}
    _write_files(frames, output.suffix.removeprefix("."))
    return {path: frame.height for path, frame in frames.items()}


def _write_files(frames: Mapping[Path, pl.DataFrame], form: str) -> None:
    """Write all files aside and rename them only then, so that no file is ever half written."""
    asides = {path: path.with_name(f".{path.name}.part") for path in frames}
    try:
        for path, frame in frames.items():
            with writing(path), asides[path].open("wb") as file:
                write(frame, form, file)
        for path, aside in asides.items():
            with writing(path):
                aside.replace(path)
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
