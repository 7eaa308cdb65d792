"""Trials and model-steps that searches need on a table's model: `python -m benchmarks.learned --table FOLDER`.

Each task of the table is held out in turn: the prior is learnt from the others, and the task is searched in the space
of the table's own knobs and structures with AdamW and a linear schedule, answered by the task's own model as by
`search launch --surrogate`. A search reaches the level when its best trial is as good as the median, over 64 searches
with other seeds, of the best of 64 random trials. `adversarial` has a prior of the same trials that takes the worst for
the best. A task whose level one in ten random trials reaches is left out of the ratios: nothing is to be found there.
`--prior FILE` makes the packaged prior again, search/samplers/learned_prior.npz.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from scipy import stats

from benchmarks.options import words_of
from benchmarks.table.plan import TaskPlan, read_plan
from graft.launching.planning.learning import sources_of_table
from graft.launching.surrogate import LANES, Surrogate, TrialTable
from graft.plugins.families import families
from search.samplers._prior import LearnedPrior, Source, learn_prior, write_prior
from search.steering.strategies import begin
from spaces import parse
from spaces.records import Outcome, Report
from spaces.space import Space

TRIALS, COLD = 128, 64
LEVELS = 64
"""Random searches whose best of 64 trials give the level, and others that are compared with: they cost little."""
EASY = 0.1
"""The share of random trials that reach the level of a task at which nothing is to be found."""
ETA, RUNGS = 2, (1, 2, 4)
"""ASHA: after validations 1, 2 and 4 of 8, the better half of what has come so far goes on."""


def content_of(plan: TaskPlan, sampler: str, seed: int, trials: int = TRIALS) -> dict[str, Any]:
    """Return the space of a task's whole table, as a mapping: the structure is drawn by each trial, too."""
    content = yaml.safe_load(plan.as_space(0).text)
    content["optimizer"] |= {"name": "adamw"}
    content["optimizer"]["schedule"] |= {"name": "linear"}
    for path, choices in plan.structure.items():
        if path.startswith("optimizer"):  # a choice among them has other draws
            continue
        section, (*inner, last) = content, path.split(".")
        for name in inner:
            section = section.setdefault(name, {})
        section[last] = {"choice": choices}
    content["search"] |= {"trials": trials, "seed": seed, "sampler": yaml.safe_load(sampler)}
    return content


def space_of(plan: TaskPlan, sampler: str, seed: int) -> Space:
    """Return the space of `content_of`, read."""
    return parse(yaml.safe_dump(content_of(plan, sampler, seed), sort_keys=False), plan.name, families(), {})


def search(
    space: Space, surrogate: Surrogate, lanes: int, *, stops: bool, level: float = -np.inf
) -> tuple[list[float], list[int]]:
    """Search with so many lanes, each filled when its trial ends; the costs of trials as they end, and steps so far.

    After 64 trials a search ends once it has reached the level.
    """
    objective, strategy = space.search.objective, begin(space, [])
    every = int(space.sample(0, lambda _: 0.5).config["training"]["validate_every"])
    rungs: dict[int, list[float]] = {rung: [] for rung in RUNGS}
    running: list[tuple[Outcome, list[Report]]] = []
    costs, steps, asked, total = list[float](), list[int](), 0, 0
    while (asked < TRIALS or running) and (len(costs) < COLD or min(costs) > level):
        if new := min(lanes - len(running), TRIALS - asked):
            trials = strategy.ask(range(asked, asked + new))
            asked += new
            opened = [
                Outcome(number=t.number, group=t.group, draws=t.draws, objective=None, state="queued") for t in trials
            ]
            running += [(trial, [*reports]) for trial, reports in zip(opened, surrogate.answer(trials), strict=True)]
        ended, going = list[Outcome](), list[tuple[Outcome, list[Report]]]()
        for trial, reports in running:
            report = reports.pop(0)
            total += every
            value = objective.value_in(report)
            at = report.step // every
            pruned = False
            if stops and at in rungs and value is not None:
                rungs[at].append(objective.sign * value)
                pruned = objective.sign * value > np.median(rungs[at])
            if reports and not pruned:
                going.append((trial, reports))
                continue
            state = "pruned" if reports else report.state
            ended.append(replace(trial, objective=value, state=state))
            costs.append(np.inf if value is None or pruned else objective.sign * value)
            steps.append(total)
        strategy.tell(ended)
        running = going
    return costs, steps


def needed(costs: Sequence[float], steps: Sequence[int], level: float) -> tuple[float, float]:
    """Return the trials and the model-steps to the level; those of the whole search and one more trial for never."""
    good = np.minimum.accumulate(costs) <= level
    at = int(good.argmax()) if good.any() else len(costs) - 1
    return at + 1.0 + (not good.any()), float(steps[at])


def turned(sources: Sequence[Source]) -> LearnedPrior:
    """Return the prior of the same trials with the worst taken for the best."""
    worst = [
        replace(source, costs=-np.nan_to_num(source.costs, posinf=np.nanmax(source.costs[np.isfinite(source.costs)])))
        for source in sources
    ]
    return learn_prior(worst)


def main() -> None:
    """Search all tasks, and print the tables."""
    plan = read_plan()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--tasks", type=words_of(plan), default=[])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--searches", type=words_of(SEARCHES), default=list(SEARCHES))
    parser.add_argument("--output", type=Path, help="FILE.csv for the trials and steps of each search")
    parser.add_argument("--prior", type=Path, help="FILE.npz: write the prior of the whole table, and do no more")
    options = parser.parse_args()
    table = TrialTable(options.table)
    sources = list(sources_of_table(table))
    start = time.process_time()
    prior = learn_prior(sources)
    count, memory = sum(len(task.configs) for task in sources), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(
        f"learning from {count:,} trials of {len(sources)} tasks: {time.process_time() - start:.1f} s, {memory:,.0f} MB"
    )
    if options.prior:
        write_prior(prior, options.prior)
        return
    rows: list[Mapping[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tasks or list(table.tasks):
            fit = table.assess(name)
            print(
                f"{name}: {fit.trials} trials, rank correlation {fit.rank_correlation:.2f}, error {fit.error:.4g}",
                flush=True,
            )
            others = [source for source in sources if source.task != name]
            good = Path(folder, f"{name}.npz")
            bad = Path(folder, f"{name}-turned.npz")
            write_prior(learn_prior(others), good)
            write_prior(turned(others), bad)
            surrogate = Surrogate(table)
            cold = [
                search(space_of(plan[name], "random", 1000 + seed), surrogate, options.lanes, stops=False)[0]
                for seed in range(LEVELS // 2)
            ]
            level = float(np.median([min(part) for costs in cold for part in (costs[:COLD], costs[COLD:])]))
            share = float(np.mean(np.array(cold) <= level))
            print(f"level {level:.4g}, reached by {share:.1%} of random trials")
            for words in options.searches:
                sampler, stops = SEARCHES[words]
                for seed in range(max(LEVELS, options.seeds) if sampler == "random" else options.seeds):
                    text = sampler.format(good=good, bad=bad)
                    costs, steps = search(
                        space_of(plan[name], text, seed), surrogate, options.lanes, stops=stops, level=level
                    )
                    trials, model_steps = needed(costs, steps, level)
                    best = min(costs[:COLD])
                    rows.append(
                        {
                            "task": name,
                            "search": words,
                            "seed": seed,
                            "trials": trials,
                            "steps": model_steps,
                            "best_of_64": best,
                            "is_easy": share > EASY,
                        }
                    )
            report(pl.DataFrame(rows).filter(task=name))
            compare(pl.DataFrame(rows).filter(task=name))
    searches = pl.DataFrame(rows)
    if options.output:
        searches.write_csv(options.output)
    print("\nall tasks")
    report(searches)
    ratios(searches.filter(~pl.col("is_easy")))


SEARCHES = {
    "random": ("random", False),
    "random + asha": ("random", True),
    "tpe": ("tpe", False),
    "learned": ("{{learned: {{prior: {good}}}}}", False),
    "learned + asha": ("{{learned: {{prior: {good}}}}}", True),
    "adversarial": ("{{learned: {{prior: {bad}}}}}", False),
}
"""Name -> its sampler, and whether ASHA stops trials."""


def report(searches: pl.DataFrame) -> None:
    """Print medians over the searches of each kind, with the quartiles of the trials."""
    for words, group in searches.group_by("search", maintain_order=True):
        low, middle, high = np.quantile(group["trials"].to_numpy(), [0.25, 0.5, 0.75])
        steps = group["steps"].median()
        print(f"  {words[0]!s:<18} trials {middle:6.1f} ({low:.0f} to {high:.0f}), model-steps {steps:12,.0f}")


def compare(searches: pl.DataFrame) -> None:
    """Print for one task how searches with a prior compare with random search.

    The ratio of the median trials has a bootstrap interval over seeds; the difference of the best costs of 64 trials,
    in the objective's unit, has Welch's.
    """
    by_name = {words: group for (words,), group in searches.group_by("search")}
    rng = np.random.default_rng(0)
    for words in ("learned", "adversarial"):
        if not {words, "random"} <= by_name.keys():
            continue
        mine, cold = (by_name[name]["trials"].to_numpy() for name in (words, "random"))
        again = [np.median(rng.choice(counts, (2000, len(counts))), axis=1) for counts in (mine, cold)]
        low, high = np.quantile(again[0] / again[1], [0.025, 0.975])
        best = [by_name[name]["best_of_64"].to_numpy() for name in (words, "random")]
        worse = stats.ttest_ind(*best, equal_var=False).confidence_interval()
        print(
            f"  {words} / random: {np.median(mine) / np.median(cold):.2f} ({low:.2f} to {high:.2f}) times the trials; "
            f"best of 64: {best[0].mean() - best[1].mean():+.3g} ({worse.low:.3g} to {worse.high:.3g})"
        )


def ratios(searches: pl.DataFrame) -> None:
    """Print how many times as many trials and steps each needs: medians over seeds, geometric mean over tasks."""
    rng = np.random.default_rng(0)
    for column in ("trials", "steps"):
        wide = (
            searches.group_by("task", "search")
            .agg(pl.col(column).median())
            .pivot("search", index="task", values=column)
        )
        for mine in ("learned", "learned + asha"):
            others = searches.filter(pl.col("search") != mine)["search"].unique(maintain_order=True)
            for other in others if mine in wide.columns else ():
                logs = np.log(wide[other].to_numpy() / wide[mine].to_numpy())
                again = np.exp(rng.choice(logs, (2000, len(logs))).mean(axis=1))
                low, high = np.quantile(again, [0.025, 0.975])
                ratio = f"{np.exp(logs.mean()):.2f} ({low:.2f} to {high:.2f})"
                print(f"{column} of {other} / {mine}: {ratio} over {len(logs)} tasks")


if __name__ == "__main__":
    main()
