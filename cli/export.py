"""The command export: a study's trials and metrics as files for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import polars as pl
import typer

from cli.options import Force, OptionError, Storage, Study, check_output, storage_url
from graft.files import write, writing
from storage.frames import open_reader

PARAMETER = "params."
"""What the name of a column starts with that holds one param."""
_ENDINGS = ("parquet", "csv", "json")


def export(
    study: Study,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.csv or FILE.json.")],
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the trials of a study to FILE, params as columns, and its metrics to FILE's name with `.metrics` in it.

    Example: search export set-complement -o trials.parquet
    """
    form = output.suffix.removeprefix(".")
    if form not in _ENDINGS:
        raise OptionError(f"{output}: the ending must be one of {', '.join(f'.{ending}' for ending in _ENDINGS)}")
    beside = output.with_name(f"{output.stem}.metrics{output.suffix}")
    for path in (output, beside):
        check_output(path, force)
    with open_reader(storage_url(storage)) as reader:
        frames = {output: unpacked(reader.trials(study)), beside: reader.metrics(study)}
    _write_files(frames, form)
    for path, frame in frames.items():
        typer.echo(f"{path}: {frame.height:,} rows", err=True)


def unpacked(trials: pl.DataFrame) -> pl.DataFrame:
    """The frame with the JSON of `params` as one typed column per path, null where a trial does not have it."""
    params = trials["params"]
    if params.is_empty():
        return trials.drop("params")
    columns = params.str.json_decode(infer_schema_length=None).struct.unnest()
    return trials.drop("params").hstack(columns.rename(lambda path: PARAMETER + path))


def _write_files(frames: Mapping[Path, pl.DataFrame], form: str) -> None:
    """Write all files aside and move them to their places only then, so that none is ever half a file."""
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
