"""How often edits that do nothing are kept, and edits of a known effect found: python -m examples.loop.measure STEP.

    pilot   trains the recipe beside other learning rates, and prints the effect of each in standard deviations
    train   trains rounds of seven edits that do nothing and one of the known effect, what is left of them
    table   decides all rounds that are trained, and 1,000 more edits whose seeds are drawn from their trials

Legend: the effect of an edit is the mean of its gains over seeds, divided by their standard deviation.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

import graft
from examples.loop.proposals import known_edit, null_edits, start_recipe
from examples.loop.rounds import KEPT, Loop, Outcome, Plan
from search.analysis.arms.claims import ClaimResult, decide_claims
from spaces.experiment import Claim

EDITS = 8
"""The edits of a round: seven that do nothing, and last the one whose effect is known."""
SEEDS = Plan.of_spread(spread=1.0, difference=1.0, edits=EDITS).seeds
RATES = (1.05, 1.1, 1.15, 1.2, 1.3)
PILOT_SEED, FIRST_SEED = 900, 1_000


def train_pilot(database: str, seeds: int) -> list[str]:
    """Train the recipe and mirrored ones of higher rates, and return the effect of each, a line each."""
    start = start_recipe()
    rate = start.set["optimizer.learning_rate"]
    recipes = {KEPT: start, "same": start.apply(known_edit(start, rate))}
    recipes |= {f"times{factor:g}": start.apply(known_edit(start, rate * factor)) for factor in RATES}
    loop = Loop(database=database, plan=Plan(edits=len(recipes) - 1, seeds=seeds, difference=1.0))
    study = loop.train("measure-pilot", recipes, PILOT_SEED)
    lines = list[str]()
    for result in study.claims().results:
        effect = result.gain / result.spread
        lines.append(f"{result.claim.arm}: gain {result.gain:.4g}, deviation {result.spread:.4g}, effect {effect:.3g}")
    return lines


def train_rounds(database: str, rounds: int, rate: float, difference: float) -> None:
    """Train rounds, each from seeds of its own; one that is finished is only read."""
    start = start_recipe()
    plan = Plan(edits=EDITS, seeds=SEEDS, difference=difference)
    loop = Loop(database=database, plan=plan, recipe=start, seed=FIRST_SEED)
    edits = [*null_edits(start), known_edit(start, rate)]
    for loop.rounds in range(rounds):
        began, spent = time.monotonic(), time.process_time()
        outcomes = loop.judge(edits)
        words = [f"{outcome.verdict}{'*' if outcome.better_on_one_seed else ''}" for outcome in outcomes]
        seconds = f"{time.monotonic() - began:.0f} s, {time.process_time() - spent:.1f} of the processor"
        print(f"{loop.rounds}: {' '.join(words)} ({seconds})", flush=True)


def read_gains(database: str) -> tuple[list[Claim], pl.DataFrame]:
    """Return the claims of a round, and the objectives of all trained rounds: round, seed, and a column an arm."""
    stored, frames, claims = graft.open(database), list[pl.DataFrame](), list[Claim]()
    for name in stored:
        if name.startswith("loop-") and stored[name].status().state == "finished":
            claims = [result.claim for result in stored[name].claims().results]
            trials = stored[name].trials().select("objective", arm="params.arm", seed="params.seed")
            wide = trials.pivot(on="arm", index="seed", values="objective")
            frames.append(wide.with_columns(round=pl.lit(int(name.removeprefix("loop-")))))
    return claims, pl.concat(frames, how="diagonal")


def decide_rounds(claims: Sequence[Claim], gains: pl.DataFrame, samples: Sequence[Sequence[int]]) -> list[ClaimResult]:
    """Decide the claims of a round for each sample of rows of `gains`, by the code that decides those of a study."""
    decisions = list[ClaimResult]()
    for rows in samples:
        sample = gains[[*rows]].drop("round").with_columns(seed=pl.int_range(len(rows)))
        results = sample.unpivot(index="seed", variable_name="arm", value_name="value").with_columns(
            condition=pl.lit(""), state=pl.lit("finished")
        )
        pairs = [results.filter(pl.col("arm").is_in([claim.arm, claim.than])) for claim in claims]
        decisions += decide_claims(claims, pairs)  # of so many seeds other arms have no part in a verdict
    return decisions


def summarise(results: Mapping[str, Sequence[ClaimResult]], one_seed: Mapping[str, Sequence[bool]]) -> list[str]:
    """Return a line of a table for the edits that do nothing and one for those of the known effect."""
    lines = list[str]()
    for kind, group in results.items():
        shares = [
            np.mean([result.verdict == verdict for result in group])
            for verdict in ("confirmed", "refuted", "undecided")
        ]
        power = np.mean([result.power for result in group])
        lucky = np.mean(one_seed[kind])
        numbers = " | ".join(f"{100 * share:.1f}" for share in (*shares, power, lucky))
        lines.append(f"| {kind} | {len(group)} | {numbers} |")
    return lines


def split_kinds(results: Sequence[ClaimResult | Outcome | bool]) -> dict[str, list[object]]:
    """Return the results of rounds by kind: seven edits that do nothing, then the known one."""
    return {
        "does nothing": [result for index, result in enumerate(results) if index % EDITS < EDITS - 1],
        "known effect": [result for index, result in enumerate(results) if index % EDITS == EDITS - 1],
    }


def make_table(claims: Sequence[Claim], gains: pl.DataFrame, edits: int) -> list[str]:
    """Return the table of what the trained rounds say, and of so many edits that do nothing drawn from their trials."""
    rounds = gains["round"].unique().sort()
    trained = [np.flatnonzero(gains["round"].to_numpy() == number).tolist() for number in rounds]
    random = np.random.default_rng(0)
    count = -(-edits // (EDITS - 1))
    drawn = [random.choice(gains.height, SEEDS, replace=False).tolist() for _ in range(count)]
    lines = [
        "| edits | claims | confirmed | refuted | undecided | power said | kept by one seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, samples in (("trained", trained), ("drawn", drawn)):
        results = split_kinds(decide_rounds(claims, gains, samples))
        first = [
            gains[arm][rows[0]] < gains[KEPT][rows[0]] for rows in samples for arm in (claim.arm for claim in claims)
        ]
        lucky = split_kinds(first)
        lines += summarise(
            {f"{kind}, {name}": group for kind, group in results.items()},
            {f"{kind}, {name}": group for kind, group in lucky.items()},
        )
    return lines


def main() -> None:
    """Do what the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("pilot", "train", "table"))
    parser.add_argument("--database", default="measure.db")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=32, help="of the pilot")
    parser.add_argument("--rate", type=float, default=0.004, help="learning rate of the edit of a known effect")
    parser.add_argument("--difference", type=float, default=0.05, help="its gain, as the pilot has it")
    parser.add_argument("--edits", type=int, default=1_000, help="edits that do nothing, drawn from trained ones")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    match options.step:
        case "pilot":
            print(*train_pilot(options.database, options.seeds), sep="\n")
        case "train":
            train_rounds(options.database, options.rounds, options.rate, options.difference)
        case _:
            print(*make_table(*read_gains(options.database), options.edits), sep="\n")


if __name__ == "__main__":
    main()
