"""The command export: a study's trials and metrics as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, OptionError, Storage, Study, check_output, storage_url

_ENDINGS = (".parquet", ".csv", ".json")


def export(
    study: Study,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.parquet, FILE.csv or FILE.json.")],
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the trials of a study to FILE, params as columns, and its metrics to FILE's name with `.metrics` in it.

    Example: search export set-complement -o trials.parquet
    """
    from graft.stored.export import export_study, metrics_file
    from storage.frames import open_reader

    if output.suffix not in _ENDINGS:
        raise OptionError(f"{output}: the ending must be one of {', '.join(_ENDINGS)}")
    for path in (output, metrics_file(output)):
        check_output(path, force)
    with open_reader(storage_url(storage)) as reader:
        rows = export_study(reader, study, output)
    for path, count in rows.items():
        typer.echo(f"{path}: {count:,} rows", err=True)
