"""Model-steps that stopping policies need on a table's real curves: `python -m benchmarks.stopping --table FOLDER`.

A search takes a task's kept trials in an order by chance, 32 side by side, validation by validation; nothing is trained
and no model stands in for a trial. It has found the level when a trial that trained to its end is as good as the
median, over other orders, of the best of 64. Each task is held out in turn: what a policy may choose is chosen on the
others, where it needs the fewest steps in the geometric mean, and the curve model is learnt from the others alone.

`asha` is Graft's own policy. `one rung` trains 32 trials for one validation, and the best of them to the end. `curves`
predicts, by extremely randomised trees, the probability that a trial ends among the best tenth, from its quantiles so
far among the trials of the search; it stops a trial whose probability is low.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graft.launching.surrogate import LANES, TrialTable
from search.samplers._features import Floats, fit_forest, to_quantiles
from search.stopping.asha import SuccessiveHalving
from spaces.records import Metric, Report
from spaces.settings import Objective

COLD = 64
FEWEST = 128
"""Trials of a task that is searched."""
TREES = 40
GOOD = 0.1
"""A trial is good if its final quantile is below this."""
CHOICES: Mapping[str, Sequence[float]] = {
    "full": (0,),
    "asha": (1.5, 2, 3, 4, 8),
    "one rung": (2, 4, 8, 16),
    "curves": (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
}
"""Policy -> what is chosen: ASHA's factor, the trials of 32 that go on, the probability."""


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The objective of a task's trials as costs, [trials, validations]; infinite from where a trial diverged."""

    task: str
    costs: Floats
    steps: int
    """Model-steps between two validations."""

    @property
    def last(self) -> int:
        """The number of validations."""
        return self.costs.shape[1]


def read_curves(table: TrialTable, task: str) -> Curves:
    """Return the curves of a task."""
    trials, metrics = table.rows_of(task)
    objective = table.tasks[task].objective
    row = ["slice", "number"]
    scores = metrics.filter(name=objective.metric, variant="raw", condition="")
    steps = sorted(scores["step"].unique())
    placed = scores.join(trials.select(row).with_row_index("row"), on=row)
    costs = np.full((trials.height, len(steps)), np.inf)
    columns = np.searchsorted(steps, placed["step"].to_numpy())
    values = objective.sign * placed["value"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    costs[placed["row"].to_numpy(), columns] = np.where(np.isfinite(values), values, np.inf)
    return Curves(task=task, costs=costs, steps=int(steps[0]))


class Policy(ABC):
    """A stopping policy at work on one search."""

    @abstractmethod
    def stops(self, running: Sequence[tuple[int, Floats]]) -> set[int]:
        """Return the trials to stop, of running trials by number with their costs so far, all newly validated."""


class Full(Policy):
    """Stops nothing."""

    def stops(self, running: Sequence[tuple[int, Floats]]) -> set[int]:
        return set()


class Asha(Policy):
    """Graft's ASHA, with its first rung at the first validation."""

    def __init__(self, eta: float) -> None:
        self._monitor = SuccessiveHalving(min_steps=1, eta=eta).begin(
            Objective(direction="minimize", metric="cost", variant="raw")
        )

    def stops(self, running: Sequence[tuple[int, Floats]]) -> set[int]:
        reports = [
            Report(number=number, step=len(costs), metrics=(Metric("cost", "raw", "", float(costs[-1])),))
            for number, costs in running
        ]
        return self._monitor.observe(reports, {report.number: 0 for report in reports})


class OneRung(Policy):
    """A policy that trains 32 trials to their first validation and only the best few of them to their end."""

    def __init__(self, kept: float) -> None:
        self._kept = int(kept)

    def stops(self, running: Sequence[tuple[int, Floats]]) -> set[int]:
        new = sorted((costs[0], number) for number, costs in running if len(costs) == 1)
        return {number for _, number in new[self._kept :]}


class CurveModel(Policy):
    """Stops a trial that a model of other tasks' curves gives a low probability to end among the best tenth."""

    def __init__(self, forest: Any, share: float, last: int) -> None:
        self._forest, self._share, self._last = forest, share, last
        self._seen: list[list[float]] = [[] for _ in range(last)]
        self._quantiles: dict[int, list[float]] = {}

    def stops(self, running: Sequence[tuple[int, Floats]]) -> set[int]:
        for _, costs in running:
            self._seen[len(costs) - 1].append(float(costs[-1]))
        for number, costs in running:
            seen = np.array(self._seen[len(costs) - 1])
            rank = (seen < costs[-1]).sum() + 0.5 * (seen == costs[-1]).sum()
            self._quantiles.setdefault(number, []).append(float(rank / len(seen)))
        open_ = [(number, len(costs)) for number, costs in running if len(costs) < self._last]
        if not open_:
            return set()
        rows = features([self._quantiles[number] for number, _ in open_], self._last)
        good = self._forest.predict(rows)
        # The search's few first trials have no quantiles to speak of.
        known = [len(self._seen[length - 1]) >= LANES // 2 for _, length in open_]
        # As with ASHA the best at a validation so far goes on, whatever is predicted: so a search never stops all.
        best = [costs[-1] <= min(self._seen[len(costs) - 1]) for _, costs in running if len(costs) < self._last]
        return {
            number for (number, _), chance, is_known, is_best in zip(open_, good, known, best, strict=True)
            if is_known and not is_best and chance < self._share
        }  # fmt: skip


def features(quantiles: Sequence[Sequence[float]], last: int) -> NDArray[np.float32]:
    """Return what the curve model sees of curves: how far, the last quantile, the best, the mean, and the slope."""
    rows = [
        [
            len(curve) / last,
            curve[-1],
            min(curve),
            float(np.mean(curve)),
            curve[-1] - curve[-2] if len(curve) > 1 else 0.0,
        ]
        for curve in quantiles
    ]
    return np.array(rows, dtype=np.float32)


def fit_curves(tasks: Sequence[Curves]) -> Any:
    """Fit whether curves of these tasks end among the best tenth to their quantiles up to each validation."""
    rows, targets = list[NDArray[np.float32]](), list[Floats]()
    for curves in tasks:
        quantiles = to_quantiles(curves.costs)
        for length in range(1, curves.last):
            rows.append(features(quantiles[:, :length].tolist(), curves.last))
            targets.append((quantiles[:, -1] <= GOOD).astype(np.float64))
    return fit_forest(np.concatenate(rows), np.concatenate(targets), TREES, 0)


def search(curves: Curves, policy: Policy, order: NDArray[np.int64], level: float, *, waves: bool) -> float:
    """Return the model-steps until a trial that trained to its end is as good as the level.

    A search that stops all such trials counts what training all to their end takes besides what it made.

    `waves`: the next 32 trials start together, when the last ones have ended.
    """
    waiting, running, made = [*order.tolist()], dict[int, int](), 0
    while waiting or running:
        if not waves or not running:
            new = waiting[: LANES - len(running)]
            waiting = waiting[len(new) :]
            running |= dict.fromkeys(new, 0)
        running = {number: length + 1 for number, length in running.items()}
        made += len(running)
        stopped = policy.stops([(number, curves.costs[number, :length]) for number, length in running.items()])
        ended = [number for number, length in running.items() if length == curves.last]
        if any(curves.costs[number, -1] <= level for number in ended):
            return made * float(curves.steps)
        running = {number: length for number, length in running.items() if number not in {*stopped, *ended}}
    return (made + curves.costs.size) * float(curves.steps)


def level_of(curves: Curves) -> float:
    """Return the median, over orders of their own, of the best of 64 trials."""
    rng = np.random.default_rng(10_000)
    return float(np.median([curves.costs[rng.permutation(len(curves.costs))[:COLD], -1].min() for _ in range(64)]))


def measure(curves: Curves, make: Callable[[], Policy], seeds: int, *, waves: bool) -> Floats:
    """Return the steps to the level of so many searches."""
    level = level_of(curves)
    orders = [np.random.default_rng(seed).permutation(len(curves.costs)) for seed in range(seeds)]
    return np.array([search(curves, make(), order, level, waves=waves) for order in orders])


def make_policy(name: str, choice: float, forest: Any, last: int) -> Policy:
    """Return a policy that has seen nothing."""
    if name == "asha":
        return Asha(choice)
    if name == "one rung":
        return OneRung(choice)
    return CurveModel(forest, choice, last) if name == "curves" else Full()


def compare(tasks: Sequence[Curves], seeds: int) -> pl.DataFrame:
    """Return task, policy, choice, seed and steps, each policy with what was chosen on the other tasks."""
    forests = {curves.task: fit_curves([other for other in tasks if other is not curves]) for curves in tasks}
    every: dict[tuple[str, float], dict[str, Floats]] = {}
    for name, choices in CHOICES.items():
        for choice in choices:
            for curves in tasks:
                counts = measure(
                    curves,
                    lambda: make_policy(name, choice, forests[curves.task], curves.last),  # noqa: B023
                    seeds,
                    waves=name == "one rung",
                )
                every.setdefault((name, choice), {})[curves.task] = counts
    rows: list[Mapping[str, Any]] = []
    for curves in tasks:
        for name, choices in CHOICES.items():

            def cost_elsewhere(choice: float) -> float:
                others = (steps for task, steps in every[name, choice].items() if task != curves.task)  # noqa: B023
                return float(np.mean([np.log(steps).mean() for steps in others]))

            chosen = min(choices, key=cost_elsewhere)
            for seed, steps in enumerate(every[name, chosen][curves.task].tolist()):
                rows.append({"task": curves.task, "policy": name, "choice": chosen, "seed": seed, "steps": steps})
    return pl.DataFrame(rows)


def compare_policies(searches: pl.DataFrame, policy: str, other: str) -> tuple[float, float, float]:
    """Return how many times as many steps `policy` needs as `other`, with a bootstrap over tasks and seeds."""
    wide = searches.pivot("policy", index=["task", "seed"], values="steps")
    logs = [np.log(rows[policy].to_numpy() / rows[other].to_numpy()) for rows in wide.partition_by("task")]
    rng = np.random.default_rng(0)
    means: list[float] = []
    for _ in range(4000):
        drawn = [logs[at] for at in rng.integers(len(logs), size=len(logs))]
        means.append(float(np.mean([rng.choice(ratios, len(ratios)).mean() for ratios in drawn])))
    low, high = np.exp(np.quantile(means, (0.025, 0.975)))
    return float(np.exp(np.mean([ratios.mean() for ratios in logs]))), float(low), float(high)


def main() -> None:
    """Search all tasks, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=16)
    parser.add_argument("--output", type=Path, help="FILE.csv for the steps of each search")
    options = parser.parse_args()
    table = TrialTable(options.table)
    tasks = [curves for name in table.tasks if len((curves := read_curves(table, name)).costs) >= FEWEST]
    searches = compare(tasks, options.seeds)
    if options.output:
        searches.write_csv(options.output)
    medians = searches.group_by("task", "policy", maintain_order=True).agg(pl.col("steps").median())
    with pl.Config(tbl_rows=-1, tbl_hide_column_data_types=True, tbl_hide_dataframe_shape=True):
        print(medians.pivot("policy", index="task", values="steps"))
        print(searches.group_by("policy", "choice", maintain_order=True).agg(tasks=pl.col("task").n_unique()))
    for other in ("full", "asha", "one rung"):
        ratio, low, high = compare_policies(searches, other, "curves")
        print(f"steps of {other} / curves: {ratio:.2f} ({low:.2f} to {high:.2f}) over {len(tasks)} tasks")
    ratio, low, high = compare_policies(searches, "asha", "one rung")
    print(f"steps of asha / one rung: {ratio:.2f} ({low:.2f} to {high:.2f}) over {len(tasks)} tasks")


if __name__ == "__main__":
    main()
