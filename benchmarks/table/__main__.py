"""A public table of trials: many tasks, one wide space (plan.yaml), drawn at random, any row trained again to the bit.

    python -m benchmarks.table train --database table.db [--tasks copying,every] [--kept FOLDER]
    python -m benchmarks.table collect --database table.db --to FOLDER [--kept FOLDER]
    python -m benchmarks.table join --from FOLDER --to FOLDER
    python -m benchmarks.table replay --from FOLDER TASK:SLICE:NUMBER [TASK:SLICE:NUMBER ...]

`train` trains what is left; `collect` keeps the trials of finished slices as trials.parquet and metrics.parquet; both
leave out the slices that the folder `--kept` has, so that several machines train parts of one table; `join` makes one
pair of files of all in a folder and below it, which is a table for `search launch --surrogate`;
`replay` trains kept trials again, each alone, with exit status 1 if one differs in a bit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from benchmarks.options import words_of
from benchmarks.table.plan import read_plan
from benchmarks.table.trials import Slices, Table, collect, replay, train


def main() -> None:
    """Do what the command says."""
    plan = read_plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "collect"):
        command = commands.add_parser(name)
        command.add_argument("--database", required=True)
        command.add_argument("--tasks", type=words_of(plan), default=list(plan))
        command.add_argument("--kept", type=read_slices, default=frozenset(), metavar="FOLDER")
    commands.choices["collect"].add_argument("--to", type=Path, required=True)
    join = commands.add_parser("join")
    join.add_argument("--from", type=Path, required=True, dest="folder")
    join.add_argument("--to", type=Path, required=True)
    again = commands.add_parser("replay")
    again.add_argument("--from", type=Path, required=True, dest="folder")
    again.add_argument("trials", nargs="+", type=read_trial, metavar="TASK:SLICE:NUMBER")
    options = parser.parse_args()
    match options.command:
        case "train":
            train([plan[name] for name in options.tasks], options.database, options.kept)
        case "collect":
            write(collect([plan[name] for name in options.tasks], options.database, options.kept), options.to)
        case "join":
            write(read(options.folder), options.to)
        case _:
            sys.exit(0 if _replay_all(read(options.folder), options.trials) else 1)


def write(table: Table, folder: Path) -> None:
    """Write the table's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    table.trials.write_parquet(folder / "trials.parquet", compression="zstd", compression_level=19)
    table.metrics.write_parquet(folder / "metrics.parquet", compression="zstd", compression_level=19)
    print(f"{table.trials.height:,} trials and {table.metrics.height:,} values in {folder}")


def read(folder: Path) -> Table:
    """Read the table in a folder, whose files may lie in folders below it in parts."""
    trials, metrics = (
        pl.concat(map(pl.read_parquet, sorted(folder.rglob(f"{name}.parquet"))), how="diagonal_relaxed")
        for name in ("trials", "metrics")
    )
    return Table(trials=trials, metrics=metrics)


def read_slices(folder: str) -> Slices:
    """For argparse's `type`: the slices of the table in a folder."""
    if not any(Path(folder).rglob("trials.parquet")):
        raise argparse.ArgumentTypeError(f"{folder!r} must be a folder with trials.parquet in it or below it")
    return read(Path(folder)).slices


def read_trial(text: str) -> tuple[str, int, int]:
    """For argparse's `type`: `copying:3:17`, task, slice and number."""
    task, *numbers = text.split(":")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} must be TASK:SLICE:NUMBER")
    return task, int(numbers[0]), int(numbers[1])


def _replay_all(table: Table, trials: Iterable[tuple[str, int, int]]) -> bool:
    whole = list[bool]()
    for name in trials:
        trial = replay(table, *name)
        whole.append(trial.equal == trial.values > 0)
        print(f"{trial.task}:{trial.slice}:{trial.number}: {trial.equal} of {trial.values} values agree", flush=True)
    print(f"{sum(whole)} of {len(whole)} trials agree")
    return all(whole)


if __name__ == "__main__":
    main()
