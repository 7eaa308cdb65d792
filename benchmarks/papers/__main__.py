"""The papers' claims trained again (plan.yaml; docs/experiments/starts.md says why and what came out).

    python -m benchmarks.papers train --database papers.db [--studies affine,every]
    python -m benchmarks.papers collect --database papers.db
    python -m benchmarks.papers table
    python -m benchmarks.papers claims
    python -m benchmarks.papers replay STUDY:NUMBER [STUDY:NUMBER ...]

`train` trains what is left; `collect` keeps the metrics that the plan names as Parquet, beside those of studies that
the database lacks, and says how many; `table` prints the table of docs/experiments/starts.md from these; `claims`
decides its comparisons of arms as claims; `replay` trains kept trials again, each alone, with exit status 1 if one
differs in a bit, as may be on a processor with other vector instructions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import polars as pl

from benchmarks.options import words_of
from benchmarks.papers.claims import describe_claims
from benchmarks.papers.plan import read_plan
from benchmarks.papers.table import table
from benchmarks.papers.trials import collect, compare, reach, replay, train

KEPT = Path(__file__).parents[2] / "docs/experiments/starts/trials.parquet"


def main() -> None:
    """Do what the command says."""
    plan = read_plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "collect"):
        commands.add_parser(name).add_argument("--database", required=True)
    commands.choices["train"].add_argument("--studies", type=words_of(plan.studies), default=list(plan.studies))
    commands.add_parser("table")
    commands.add_parser("claims")
    commands.add_parser("replay").add_argument("trials", nargs="+", metavar="STUDY:NUMBER")
    options = parser.parse_args()
    match options.command:
        case "train":
            train([plan.studies[name] for name in options.studies], options.database)
        case "collect":
            values = collect(plan, options.database)
            if KEPT.exists() and values.height:  # studies that another database has trained stay
                earlier = pl.read_parquet(KEPT).filter(~pl.col("study").is_in(values["study"].unique().implode()))
                values = pl.concat([earlier, values], how="diagonal_relaxed")
            KEPT.parent.mkdir(exist_ok=True)
            values.write_parquet(KEPT, compression="zstd")
            print(f"{values.height:,} values of {values['study'].n_unique()} studies in {KEPT}")
        case "table":
            kept = pl.read_parquet(KEPT)
            print(table(plan, kept, compare(plan, kept), reach(plan, kept)))
        case "claims":
            print(*describe_claims(plan, pl.read_parquet(KEPT)), sep="\n")
        case _:
            kept = pl.read_parquet(KEPT)
            replays = [
                replay(kept, study, int(number)) for study, _, number in (t.partition(":") for t in options.trials)
            ]
            for run in replays:
                print(run, flush=True)
            sys.exit(any(run.equal < run.values for run in replays))


if __name__ == "__main__":
    main()
