"""The command export: a study's trials and metrics as files, or a trial as a program or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.options import (
    AcceptDataChanges,
    Force,
    OptionError,
    RetrainingDevice,
    Storage,
    Study,
    check_output,
    say_look,
    say_restored,
    storage_url,
)

_ENDINGS = (".parquet", ".csv", ".json")
_OPTUNA = "optuna"
_LOGGERS = ("tensorboard", "trackio", "mlflow")
_HUGGING_FACE = "huggingface"
_PROGRAMS = (_OPTUNA, *_LOGGERS, _HUGGING_FACE)
_TOP = 50

Number = Annotated[
    int | None, typer.Argument(metavar="[N]", help="Number of a trial, for --script and --to huggingface.")
]


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The target and the form of an export, and the choice of its trials."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="FILE.parquet, FILE.csv or FILE.json; the file or the folder of --to.",
            show_default=False,
        ),
    ] = None
    to: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(_PROGRAMS),
            help="For this program: a journal file of Optuna, or a folder with the runs of a logger, or with a model.",
            show_default=False,
        ),
    ] = None
    top: Annotated[
        int | None,
        typer.Option(min=1, help="Trials for a logger, those of the best objectives.", show_default=str(_TOP)),
    ] = None
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Trials for a logger: a condition as of `search trials`.")
    ] = None
    script: Annotated[
        Path | None,
        typer.Option(
            "--script",
            help="FILE.py: trial N as plain PyTorch that trains it and compares its metrics, with no import of Graft.",
            show_default=False,
        ),
    ] = None
    variant: Annotated[
        str | None,
        typer.Option(help="Parameters of a model: raw, ema, bema ...", show_default="the objective's"),
    ] = None
    device: RetrainingDevice = None
    accept_changes: AcceptDataChanges = False
    force: Force = False


def export(study: Study, destination: Destination, number: Number = None, storage: Storage = None) -> None:
    """Write a study's trials to FILE.csv, params as columns, and its metrics to FILE.metrics.csv.

    With --to, `search export set-complement --to tensorboard -o runs`, what Optuna or a logger of
    experiments reads: all trials as a study of Optuna, the 50 best as runs of TensorBoard, Trackio
    or MLflow.

    With N and --script, `search export set-complement 4 --script trial-4.py`, one trial as a
    program that stands alone: it needs torch and numpy. The data of a corpus, of games and of
    CLRS-Text comes beside it, as FILE.npz.

    With N and --to huggingface, `search export tinystories 4 --to huggingface -o tiny`, one trial
    as a model of Hugging Face transformers, with its tokenizer and the code of its network: it is
    trained again for it.

    Example: search export set-complement -o trials.parquet
    """
    output, script = destination.output, destination.script
    if destination.to not in (None, *_PROGRAMS):
        raise OptionError(f"--to: {destination.to!r} must be one of {', '.join(_PROGRAMS)}")
    if destination.to != _HUGGING_FACE and (destination.variant or destination.device):
        raise OptionError("--variant and --device are of a model, --to huggingface")
    if destination.to not in _LOGGERS and (destination.top or destination.where):
        raise OptionError(f"--top and --where choose trials for --to {'|'.join(_LOGGERS)}")
    if script is not None:
        if number is None or output is not None or destination.to:
            raise OptionError(
                f"--script {script} goes with the number of a trial, STUDY N, and without --output and --to"
            )
        _export_script(study, number, script, destination, storage_url(storage))
        return
    if number is not None and destination.to != _HUGGING_FACE:
        raise OptionError(f"{number}: the number of a trial goes with --script FILE.py, or with --to huggingface")
    if output is None:
        raise OptionError("export needs --output FILE, or the number of a trial and --script FILE.py")
    if destination.to == _HUGGING_FACE:
        if number is None:
            raise OptionError("--to huggingface needs the number of a trial, STUDY N")
        _export_model(study, number, output, destination, storage_url(storage))
        return
    _export_trials(study, output, destination, storage_url(storage))


def _say_look(study: str, url: str) -> None:
    """Record and report a look, once nothing speaks against the export and before it is written."""
    from storage.frames import open_reader

    with open_reader(url) as reader:
        say_look(reader, study, "export")


def _export_trials(study: str, output: Path, destination: Destination, url: str) -> None:
    """Write tables, or files for Optuna or a logger."""
    if destination.to is None:
        from graft.stored.export import export_study, metrics_file
        from storage.frames import open_reader

        check_output(output, destination.force, _ENDINGS)
        check_output(metrics_file(output), destination.force)
        with open_reader(url) as reader:
            say_look(reader, study, "export")
            rows = export_study(reader, study, output)
        for path, count in rows.items():
            typer.echo(f"{path}: {count:,} rows", err=True)
        return
    if destination.to == _OPTUNA:
        from graft.exports.interchange.optuna_studies import export_journal

        check_output(output, destination.force)
        _say_look(study, url)
        count = export_journal(url, study, output)
    else:
        from graft.exports.interchange.loggers import export_logged

        _check_folder(output, destination.force)
        _say_look(study, url)
        count = export_logged(url, study, destination.to, output, where=destination.where, top=destination.top or _TOP)
    typer.echo(f"{output}: {count:,} trials", err=True)


def _check_folder(folder: Path, force: bool) -> None:
    if force:
        raise OptionError(f"--force does not replace a folder; name another one than {folder}, or remove it")


def _export_model(study: str, number: int, folder: Path, destination: Destination, url: str) -> None:
    from cli.progress import training_bar
    from graft.exports.huggingface.exporting import begin_export, finish_export

    _check_folder(folder, destination.force)
    variant, device, accept = destination.variant, destination.device, destination.accept_changes
    begun = begin_export(url, study, number, folder, variant=variant, device=device, accept_changes=accept)
    _say_look(study, url)
    say_restored(study, begun.restored)
    with training_bar(number, begun.restored.steps) as watch:
        written = finish_export(begun, watch)
    typer.echo(f"{folder}: {written}", err=True)


def _export_script(study: str, number: int, script: Path, destination: Destination, url: str) -> None:
    from graft.exports.scripts.writing import data_file, restore_alone, write_script

    if script.suffix != ".py":
        raise OptionError(f"--script {script}: the ending must be .py")
    for path in (script, data_file(script)):
        check_output(path, destination.force)
    restored = restore_alone(url, study, number, accept_changes=destination.accept_changes)
    _say_look(study, url)
    say_restored(study, restored)
    for path in write_script(restored, study, script):
        typer.echo(f"{path}: {path.stat().st_size:,} bytes", err=True)
