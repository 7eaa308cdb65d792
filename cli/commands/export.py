"""The command export: a study's trials and metrics as files for other programs, or one trial as a script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, OptionError, Storage, Study, check_output, say_changes, storage_url

_ENDINGS = (".parquet", ".csv", ".json")

Number = Annotated[int | None, typer.Argument(metavar="[N]", help="Number of a trial, for --script.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="FILE.parquet, FILE.csv or FILE.json.", show_default=False)
]
Script = Annotated[
    Path | None,
    typer.Option(
        "--script",
        help="FILE.py: trial N as plain PyTorch that trains it and compares its metrics, with no import of Graft.",
        show_default=False,
    ),
]


def export(
    study: Study,
    number: Number = None,
    output: Output = None,
    script: Script = None,
    force: Force = False,
    storage: Storage = None,
) -> None:
    """Write the trials of a study to FILE, params as columns, and its metrics to FILE's name with `.metrics` in it.

    With N and --script, `search export set-complement 4 --script trial-4.py`, one trial as a program that stands alone:
    it needs torch and numpy. The data of a corpus, of games and of CLRS-Text comes beside it, as FILE.npz.

    Example: search export set-complement -o trials.parquet
    """
    if script is not None:
        if number is None or output is not None:
            raise OptionError(f"--script {script} goes with the number of a trial, STUDY N, and without --output")
        _export_script(study, number, script, force, storage_url(storage))
        return
    if number is not None:
        raise OptionError(f"{number}: the number of a trial goes with --script FILE.py")
    if output is None:
        raise OptionError("export needs --output FILE, or the number of a trial and --script FILE.py")
    _export_tables(study, output, force, storage_url(storage))


def _export_tables(study: str, output: Path, force: bool, url: str) -> None:
    from graft.stored.export import export_study, metrics_file
    from storage.frames import open_reader

    if output.suffix not in _ENDINGS:
        raise OptionError(f"{output}: the ending must be one of {', '.join(_ENDINGS)}")
    for path in (output, metrics_file(output)):
        check_output(path, force)
    with open_reader(url) as reader:
        rows = export_study(reader, study, output)
    for path, count in rows.items():
        typer.echo(f"{path}: {count:,} rows", err=True)


def _export_script(study: str, number: int, script: Path, force: bool, url: str) -> None:
    from graft.scripts.writing import data_file, restore_alone, write_script

    if script.suffix != ".py":
        raise OptionError(f"--script {script}: the ending must be .py")
    for path in (script, data_file(script)):
        check_output(path, force)
    restored = restore_alone(url, study, number)
    say_changes(study, restored.outside)
    for path in write_script(restored, study, script):
        typer.echo(f"{path}: {path.stat().st_size:,} bytes", err=True)
