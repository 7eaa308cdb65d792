"""Whether earlier studies on other tasks make a search shorter: `python -m benchmarks.warm_start [--seeds 6]`.

Four small tasks; each in turn is held out. The prior comes from one random study of 48 trials on each of the others,
by `--warm-start` as a person gives it. The held-out task is then searched with and without it, with the same seeds:
trial n of both searches has the same seed. Prints, and writes to `--output` as CSV, the objective of every trial.

Legend: *cold* starts from nothing; *warm* has candidates, box and floor; *candidates* is the warm search's first
trials and then the cold one's, which is what the candidates alone give to random search. A search *reaches* a level
when its best trial is as good. The level is a cold search's final best: its own seed's, or another one's, which tells
how often a search reaches the best of another by luck alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import t as student

from benchmarks.options import words_of
from graft.launching.checkpoints import NOWHERE, Checkpoints
from graft.launching.enrolling import enrol, find_study
from graft.launching.placement import Placement
from graft.launching.planning.warm_start import warm_start
from graft.launching.run import RunRequest, run_study
from graft.plugins.families import families
from search.analysis.warm_start import MOST_CANDIDATES
from spaces import parse
from spaces.space import Space
from storage import open_reader

TASKS = {
    "add_mod": "{name: add_mod, modulus: 11}",
    "haystack": "{name: haystack, pairs: 2, markers: 16}",
    "add": "{name: add, digits: 2}",
    "parentheses": "{name: parentheses, length: 8}",
}
SPACE = """
study: warm-start
task: add
model:
  name: transformer
  depth: 1
  heads: 2
  width: 16
  scorer: {choice: [softmax, sigmoid, {ssa: {n: "uniform(1, 3)"}}]}
  embedding_dropout: uniform(0.001, 0.3)
optimizer:
  name: adamw
  weight_decay: 10 ** uniform(-4, 0)
  beta1: 1 - 10 ** uniform(-2, 0)
  learning_rate: 10 ** uniform(-4, -1)
  schedule: warmup_cooldown
training: {steps: 250, batch: 32, validate_every: 125, validation_batch: 256}
search: {sampler: random, trials: 32, group: 32, objective: {minimize: loss/raw}}
"""
EARLIER_TRIALS, EARLIER_SEED = 48, 1000

Curves = NDArray[np.float64]
"""The best loss after each trial, [tasks, seeds, trials]."""


def main() -> None:
    """Run all searches and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--sampler", type=words_of(["random", "qmc", "tpe", "cmaes", "gp"]), default=["random"])
    parser.add_argument("--output", type=Path, help="FILE.csv for the objective of every trial")
    options = parser.parse_args()
    settings = {"training.steps": str(options.steps), "search.sampler": options.sampler[0]}
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/graft.db"
        trials = searched(url, options.seeds, settings | {"search.trials": str(options.trials)})
    if options.output:
        trials.write_csv(options.output)
    report(trials)


def searched(url: str, seeds: int, settings: dict[str, str]) -> pl.DataFrame:
    """task, arm, seed, number, loss: all trials of the held-out searches; infinite where one diverged."""
    earlier = settings | {"search.trials": str(EARLIER_TRIALS), "search.sampler": "random"}
    for index, task in enumerate(TASKS):
        search(url, task, space(task, EARLIER_SEED + index, earlier))
    frames: list[pl.DataFrame] = []
    for seed in range(seeds):
        for task in TASKS:
            cold = space(task, seed, settings)
            others = ",".join(other for other in TASKS if other != task)
            for arm, variant in (("cold", cold), ("warm", warm_start(url, "new", cold, others).space)):
                rows = search(url, f"{arm}-{task}-{seed}", variant)
                frames.append(
                    rows.select(
                        pl.lit(task).alias("task"), pl.lit(arm).alias("arm"), seed=seed, number="number", loss="loss"
                    )
                )
    return pl.concat(frames)


def space(task: str, seed: int, settings: dict[str, str]) -> Space:
    """Return the search space with another task."""
    overrides = {"task": TASKS[task], "search.seed": str(seed), **settings}
    return parse(SPACE, "benchmarks/warm_start.py", families(), overrides)


def search(url: str, name: str, space: Space) -> pl.DataFrame:
    """Run a study on one core; number and loss of its trials."""
    enrol(url, name, space)
    if find_study(url, name)["state"] != "finished":
        placement = Placement(executor="inline", workers=1, device="cpu")
        checkpoints = Checkpoints(url=NOWHERE, seconds=600.0)
        request = RunRequest(database=url, study=name, placement=placement, checkpoints=checkpoints)
        run_study(request, show=lambda _: None)
    with open_reader(url) as reader:
        trials = reader.study(name).trials(columns=("number", "objective"))
    return trials.select("number", loss=pl.col("objective").fill_null(np.inf))


# ------------------------------------------------------------------------------------------------------------ figures


def report(trials: pl.DataFrame) -> None:
    """Print how often and how soon each arm reaches the level, and how good it ends, per task and over all."""
    cold, warm = losses(trials, "cold"), losses(trials, "warm")
    candidates = np.concatenate([warm[..., :MOST_CANDIDATES], cold[..., MOST_CANDIDATES:]], axis=-1)
    arms = {
        name: np.minimum.accumulate(arm, axis=-1)
        for name, arm in (("cold", cold), ("candidates", candidates), ("warm", warm))
    }
    report_levels(arms)
    report_ends(arms)


def losses(trials: pl.DataFrame, arm: str) -> Curves:
    """Return the losses of an arm, [tasks, seeds, trials]."""
    rows = trials.filter(pl.col("arm") == arm)
    order = {name: index for index, name in enumerate(TASKS)}
    rows = rows.with_columns(place=pl.col("task").replace_strict(order)).sort("place", "seed", "number")
    return rows["loss"].to_numpy().reshape(len(TASKS), rows["seed"].n_unique(), -1)


def report_levels(arms: dict[str, Curves]) -> None:
    """Reaching the final best of a cold search."""
    print(f"\n{'reaches a cold search':<40}{'share':>8}{'trials needed, the last + 1 for never':>40}")
    for name, curves in arms.items():
        for words, needed in (
            ("its own seed's", own(arms["cold"], curves)),
            ("another seed's", others(arms["cold"], curves)),
        ):
            share = np.mean(needed <= curves.shape[-1])
            print(f"{name + ', ' + words:<40}{100 * share:7.0f}%{interval(needed.mean(axis=-1).ravel()):>40}")
    saved = others(arms["cold"], arms["cold"]) - others(arms["cold"], arms["warm"])
    print(f"{'saved by the warm start, over searches':<48}{interval(saved.mean(axis=-1).ravel()):>40}")
    print(f"{'saved by the warm start, over tasks':<48}{interval(saved.mean(axis=(1, 2))):>40}")
    for task, row in zip(TASKS, saved, strict=True):
        print(f"  {task:<46}{interval(row.mean(axis=-1)):>40}")


def own(levels: Curves, curves: Curves) -> Curves:
    """Trials that each search needs to reach the cold search of its seed, [tasks, seeds, 1]."""
    return reached(curves, levels[..., -1:])


def others(levels: Curves, curves: Curves) -> Curves:
    """Trials that each search needs to reach the cold searches of the other seeds, [tasks, seeds, seeds - 1]."""
    ends, seeds = levels[..., -1], levels.shape[1]
    rest = [[ends[task][np.arange(seeds) != seed] for seed in range(seeds)] for task in range(len(ends))]
    return reached(curves, np.array(rest))


def reached(curves: Curves, levels: Curves) -> Curves:
    """Return the first trial from 1 as good as each level, [tasks, seeds, levels]; one more than all for none."""
    good = curves[:, :, None, :] <= levels[..., None]
    return np.where(good.any(axis=-1), good.argmax(axis=-1) + 1.0, curves.shape[-1] + 1.0)


def report_ends(arms: dict[str, Curves]) -> None:
    """Best losses after some trials, and in how many searches warm is ahead."""
    trials = arms["cold"].shape[-1]
    places = [count for count in (4, 8, 16, trials) if count <= trials]
    for task, name in enumerate(TASKS):
        print(f"\n{name + ', mean best loss after':<28}" + "".join(f"{count:>10}" for count in places))
        for arm, curves in arms.items():
            print(f"  {arm:<26}" + "".join(f"{curves[task, :, count - 1].mean():10.4f}" for count in places))
    ahead = [np.mean(arms["warm"][..., count - 1] < arms["cold"][..., count - 1]) for count in places]
    print(f"\n{'searches in which warm leads':<28}" + "".join(f"{100 * share:9.0f}%" for share in ahead))
    ratios = 100 * (arms["warm"][..., -1] / arms["cold"][..., -1] - 1)
    print(f"best loss at the end, change in percent: {interval(ratios.ravel())}")


def interval(values: Curves) -> str:
    """Mean and 95 % t-interval."""
    mean, count = values.mean(), len(values)
    reach = student.ppf(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count)
    return f"{mean:.1f} ({mean - reach:.1f} to {mean + reach:.1f})"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
