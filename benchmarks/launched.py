"""Launches that train, with `learned`, with TPE and at random: `python -m benchmarks.launched train|collect|report`.

    python -m benchmarks.launched train --table TABLE --database URL [--tasks some,haystack] [--seeds 8]
    python -m benchmarks.launched collect --database URL...   # docs/experiments/launches.parquet
    python -m benchmarks.launched report

Fixed before the first of them was trained: six tasks, drawn by chance (`random.Random(0)`) from the eleven of the
table on which the design of `learned` was not chosen; eight seeds; 64 trials; one worker on a CPU, which trains one
or two trials side by side, since each has a structure of its own. `train` learns the prior of a task from the table
without that task, once, in the folder `--priors`. The space is that of `benchmarks.learned`.

Changed after 52 of these 96 launches had been looked at: random search is launched, too. Before, its trials were to
be the table's own with AdamW and a linear schedule, but those of a task have 5 to 12 structures in all, where a search
draws one for each trial: the random trials with which TPE begins found the level of `masked_language` at once.

The random trials of a task's eight launches are taken one after another, in orders by chance, with and without ASHA.
The level is the median, over other orders, of the best of 64 of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

import graft
from benchmarks.learned import COLD, EASY, ETA, compare, content_of, ratios, report
from benchmarks.options import words_of
from benchmarks.stopping import Asha, Curves, Full, level_of
from benchmarks.table.plan import TaskPlan, read_plan
from graft.launching.planning.learning import sources_of_table
from graft.launching.surrogate import TrialTable
from search.samplers._prior import learn_prior, write_prior

TASKS = ("masked_language", "some", "add_reversed", "haystack", "max_retrieval", "clrs_minimum")
SEEDS = 8
SAMPLERS = {"learned": "{{learned: {{prior: {prior}}}}}", "tpe": "tpe", "random": "random"}
ORDERS = 256
"""Random searches, which cost nothing."""
KEPT = Path("docs/experiments/launches.parquet")


class Launched(NamedTuple):
    """A launch of the plan, by its task, sampler and seed."""

    task: str
    search: str
    seed: int

    @property
    def study(self) -> str:
        """The name of its study."""
        return f"launched-{self.task.replace('_', '-')}-{self.search}-{self.seed}"


def launches(tasks: Sequence[str], seeds: int) -> Iterable[Launched]:
    """Return the plan, seed by seed, so that what is finished has all tasks and samplers."""
    return (Launched(task, name, seed) for seed in range(seeds) for task in tasks for name in SAMPLERS)


def train(table: TrialTable, database: str, priors: Path, tasks: Sequence[str], seeds: int) -> None:
    """Train what is left of the plan and not in KEPT; an interrupt or a kill loses nothing recorded."""
    plan, sources = read_plan(), list(sources_of_table(table))
    known = set(kept().select("task", "search", "seed").rows())
    priors.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        if not (path := priors / f"{task}.npz").exists():
            write_prior(learn_prior([source for source in sources if source.task != task]), path)
    run = graft.Run(executor="inline", workers=1, device="cpu", checkpoints="none")
    for launch in launches(tasks, seeds):
        if launch in known:
            continue
        sampler = SAMPLERS[launch.search].format(prior=priors / f"{launch.task}.npz")
        content = content_of(plan[launch.task], sampler, launch.seed, COLD) | {"study": launch.study}
        graft.launch(graft.Space(content), database=database, run=run)


def kept() -> pl.DataFrame:
    """Return the trials that are kept, as `collect` does."""
    none = {"task": pl.String(), "search": pl.String(), "seed": pl.Int32()}
    return pl.read_parquet(KEPT) if KEPT.exists() else pl.DataFrame(schema=none)


def collect(databases: Sequence[str]) -> pl.DataFrame:
    """Return the trials that are kept, and those of further finished launches in the order in which they ended.

    Columns: task, search, seed, number, state, objective, steps, `made`, the model-steps of all trials of the
    search that had begun when this one ended, each counted whole, and `curve`, the metric of the objective at each
    validation.
    """
    stored, plan, frames = [graft.open(database) for database in databases], read_plan(), [kept()]
    known = set(frames[0].select("task", "search", "seed").rows())
    for launch in launches(TASKS, SEEDS):
        if launch in known:
            continue
        studies = [database[launch.study] for database in stored if launch.study in database]
        finished = [study for study in studies if study.status().state == "finished"]
        if not finished:
            continue
        trials = finished[0].trials().sort("ended")
        begun = trials.select(pl.col("started_at").sort(), before=pl.col("steps").sort_by("started_at").cum_sum())
        ends = trials.join_asof(begun, left_on="finished_at", right_on="started_at", check_sortedness=False)
        [metric] = plan[launch.task].metric.values()
        values = finished[0].metrics().filter(name=metric, variant="raw", condition="").sort("step")
        curves = values.group_by("number").agg(curve="value")
        frames.append(
            ends.join(curves, on="number", how="left", maintain_order="left").select(
                pl.lit(launch.task).alias("task"), pl.lit(launch.search).alias("search"),
                pl.lit(launch.seed).alias("seed"), "number", "state", "objective", "steps",
                made="before", curve="curve",
            )
        )  # fmt: skip
    return pl.concat(filter(len, frames))


def random_searches(curves: Curves, level: float, *, stops: bool) -> pl.DataFrame:
    """Search at random, one trial at a time: return seed, trials and steps to the level, and the best of 64."""
    rows = list[dict[str, float]]()
    for seed in range(ORDERS):
        policy, made, ends = Asha(ETA) if stops else Full(), 0, list[float]()
        steps = float("nan")
        for number in np.random.default_rng(seed).permutation(len(curves.costs))[:COLD].tolist():
            length, is_stopped = 0, False
            while length < curves.last and not is_stopped:
                length += 1
                is_stopped = bool(policy.stops([(number, curves.costs[number, :length])]))
            made += length
            ends.append(np.inf if length < curves.last else float(curves.costs[number, -1]))
            if min(ends) <= level and np.isnan(steps):
                steps = made * float(curves.steps)
        good = np.minimum.accumulate(ends) <= level
        rows.append(
            {
                "seed": seed,
                "trials": good.argmax() + 1.0 if good.any() else COLD + 1.0,
                "steps": made * float(curves.steps) if np.isnan(steps) else steps,
                "best_of_64": min(ends),
            }
        )
    return pl.DataFrame(rows)


def curves_of(task: TaskPlan, trials: pl.DataFrame) -> Curves:
    """Return the curves of trials as costs, infinite from where one diverged."""
    [direction] = task.metric
    validations = task.plan["validations"]
    costs = np.full((trials.height, validations), np.inf)
    for row, values in enumerate(trials["curve"].to_list()):
        known = np.array(values or [], float)
        costs[row, : len(known)] = np.where(np.isfinite(known), known if direction == "minimize" else -known, np.inf)
    return Curves(task=task.name, costs=costs, steps=task.steps // validations)


def measure(trials: pl.DataFrame) -> pl.DataFrame:
    """Return task, search, seed, trials and steps to the level, the best of 64, and whether the task is easy.

    Raises SystemExit if no task has been searched at random.
    """
    frames, plan = list[pl.DataFrame](), read_plan()
    for (task,), rows in trials.group_by("task", maintain_order=True):
        drawn = rows.filter(search="random")
        if drawn.is_empty():
            print(f"{task}: left out, without a launch at random there is no level")
            continue
        curves = curves_of(plan[str(task)], drawn)
        level, sign = level_of(curves), 1 if "minimize" in plan[str(task)].metric else -1
        is_easy = float((curves.costs[:, -1] <= level).mean()) > EASY
        print(f"{task}: level {sign * level:.4g}, of {drawn.height} random trials", flush=True)
        parts = [
            random_searches(curves, level, stops=stops).with_columns(search=pl.lit(name))
            for name, stops in (("random", False), ("random + asha", True))
        ]
        launched = rows.filter(pl.col("search") != "random")
        for (search, seed), ended in launched.group_by("search", "seed", maintain_order=True):
            costs = (sign * ended["objective"]).fill_null(np.inf).fill_nan(np.inf).to_numpy()
            good = np.minimum.accumulate(costs) <= level
            at = int(good.argmax()) if good.any() else len(costs) - 1
            parts.append(
                pl.DataFrame(
                    {
                        "seed": [seed],
                        "trials": [at + 1.0 + (not good.any())],
                        "steps": [float(ended["made"][at])],
                        "best_of_64": [float(costs.min())],
                        "search": [search],
                    }
                )
            )
        frames.append(
            pl.concat(parts).select(pl.lit(task).alias("task"), pl.all(), pl.lit(value=is_easy).alias("is_easy"))
        )
    if not frames:
        raise SystemExit(f"{KEPT}: no launches at random are kept; `train` them, then `collect`")
    return pl.concat(frames)


def main() -> None:
    """Do what the command says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("collect").add_argument("--database", nargs="+", required=True)
    commands.add_parser("report")
    command = commands.add_parser("train")
    command.add_argument("--table", type=Path, required=True)
    command.add_argument("--database", required=True)
    command.add_argument("--priors", type=Path, default=Path("priors"))
    command.add_argument("--tasks", type=words_of(TASKS), default=list(TASKS))
    command.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    match options.command:
        case "train":
            train(TrialTable(options.table), options.database, options.priors, options.tasks, options.seeds)
        case "collect":
            trials = collect(options.database)
            trials.write_parquet(KEPT, compression="zstd")
            print(
                f"{trials.height:,} trials of {trials.select('task', 'search', 'seed').n_unique()} launches in {KEPT}"
            )
        case _:
            searches = measure(kept())
            for (task,), rows in searches.group_by("task", maintain_order=True):
                print(task)
                report(rows)
                compare(rows)
            print("\nall tasks")
            ratios(searches.filter(~pl.col("is_easy")))


if __name__ == "__main__":
    main()
