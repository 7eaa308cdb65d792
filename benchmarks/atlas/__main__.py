"""The atlas of inductive biases (docs/experiments/atlas.md has its plan).

    python -m benchmarks.atlas train --database atlas.db [--tasks copying,every]
    python -m benchmarks.atlas collect --database atlas.db [--database other.db]
    python -m benchmarks.atlas page
    python -m benchmarks.atlas replay TASK:NUMBER [TASK:NUMBER ...]

`train` trains what is left; `collect` keeps the trials of finished tasks as Parquet; `page` makes the page and the
matrix from these; `replay` trains kept trials again, each alone, with exit status 1 if one differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from benchmarks.atlas.page import write_page
from benchmarks.atlas.plan import read_plan
from benchmarks.atlas.trials import collect, replay, train
from benchmarks.options import words_of

FOLDER = Path(__file__).parents[2] / "docs/experiments/atlas"
KEPT = FOLDER / "trials.parquet"
EARLIER = ("first", "second")
"""Earlier atlases, whose trials are kept beside KEPT in files of these names."""


def main() -> None:
    """Do what the command says."""
    plan = read_plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, action in (("train", "store"), ("collect", "append")):
        command = commands.add_parser(name)
        command.add_argument("--database", required=True, action=action)
        command.add_argument("--tasks", type=words_of(plan), default=list(plan))
    commands.add_parser("page")
    commands.add_parser("replay").add_argument("trials", nargs="+", type=read_trial, metavar="TASK:NUMBER")
    options = parser.parse_args()
    match options.command:
        case "train":
            train([plan[name] for name in options.tasks], options.database)
        case "collect":
            rows = collect([plan[name] for name in options.tasks], options.database)
            FOLDER.mkdir(exist_ok=True)
            rows.write_parquet(KEPT, compression="zstd")
            print(f"{rows.height:,} rows of {rows['task'].n_unique()} tasks in {KEPT}")
        case "page":
            write_page(plan, pl.read_parquet(KEPT), read_earlier(), FOLDER)
        case _:
            sys.exit(0 if _replay_all(options.trials) else 1)


def read_earlier() -> dict[str, pl.DataFrame]:
    """Return the trials of the earlier atlases by name."""
    return {name: pl.read_parquet(FOLDER / f"{name}.parquet") for name in EARLIER}


def read_trial(text: str) -> tuple[str, int]:
    """For argparse's `type`: `copying:40`, a trial that is kept."""
    task, _, number = text.partition(":")
    kept = pl.read_parquet(KEPT, columns=["task", "number"])
    numbers = kept.filter(task=task)["number"]
    if not number.isdecimal() or int(number) not in numbers:
        choices = (
            f"0 to {numbers.max()}" if len(numbers) else f"tasks {', '.join(kept['task'].unique(maintain_order=True))}"
        )
        raise argparse.ArgumentTypeError(f"{text!r} must be TASK:NUMBER of a kept trial; choose among {choices}")
    return task, int(number)


def _replay_all(trials: Iterable[tuple[str, int]]) -> bool:
    kept, whole = pl.read_parquet(KEPT), list[bool]()
    for task, number in trials:
        pairs = replay(kept, task, number)
        whole.append(all(pair.agrees for pair in pairs))
        for pair in pairs:
            word = "agrees" if pair.agrees else "differs"
            print(f"{task}:{number} {pair.endpoint}: kept {pair.kept!r}, again {pair.again!r}: {word}", flush=True)
    print(f"{sum(whole)} of {len(whole)} trials agree")
    return all(whole)


if __name__ == "__main__":
    main()
