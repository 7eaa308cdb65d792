"""What the statistics of reports are worth, on made studies: `python -m benchmarks.statistics [--studies 1000]`.

Prints, as Markdown: how often each kind of interval that a report prints holds what it is of, with normal and with
skewed numbers; how often the report of an experiment without any effect says that an arm is better or worse; and how
often it finds an effect, by its size and the number of seeds. The claims are those of the report's own sentences and
table.

Legend: an effect is in standard deviations of the paired difference of two arms, which is what seeds leave.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from graft.report.data import StudyData
from graft.report.rendering.document import Table
from graft.report.sections import FigureNumbers
from graft.report.sections.arms import Arms
from search.analysis.statistics.aggregates import interquartile_interval
from search.analysis.statistics.intervals import Bootstrap, Interval, Student
from search.analysis.statistics.paired import mean_interval, summarize_differences
from search.analysis.statistics.verdicts import BETTER, WORSE
from search.analysis.study.top_k import mean_margin, median_interval, top_k_statistics
from search.analysis.transfer.affinity import interval_of_correlation

Numbers = NDArray[np.float64]
Bounds = tuple[float | None, float | None]

ARMS = ("baseline", "other", "third", "fourth")
CONDITIONS = ("", "length=8", "length=16")
SEEDS = (3, 5, 8, 12)
EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)


# ---------------------------------------------------------------------------------------------------------- intervals


def _of_cell(interval: Interval) -> Callable[[Numbers], Bounds]:
    def bounds(values: Numbers) -> Bounds:
        cell = {"pairs": len(values), "mean": values.mean(), "deviation": values.std(ddof=1), "changes": values}
        low, high = interval.bounds(pl.DataFrame([cell | {"changes": values.tolist()}]))
        return float(low[0]), float(high[0])

    return bounds


def _of_pairs(values: Numbers) -> Bounds:
    found = summarize_differences(values)
    return found.low, found.high


def _of_margin(values: Numbers) -> Bounds:
    [margin] = pl.DataFrame({"x": values}).select(mean_margin("x")).to_series()
    return (None, None) if margin is None else (values.mean() - margin, values.mean() + margin)


def _of_median(values: Numbers) -> Bounds:
    found = pl.DataFrame({"x": values}).select(**median_interval("x"))
    return found["low"][0], found["high"][0]


def _of_tasks(tasks: int) -> Callable[[Numbers], Bounds]:
    return lambda values: interquartile_interval(list(values.reshape(tasks, -1)))


def _best_tenth(raw: Numbers, averaged: Numbers) -> pl.DataFrame:
    """The row of the averaged parameters of so many trials."""
    number = np.arange(len(raw))
    costs = {"raw": raw, "bema": averaged}
    sides = [pl.DataFrame({"number": number, "variant": name, "cost": cost}) for name, cost in costs.items()]
    found = top_k_statistics(pl.concat(sides).with_columns(metric=0, sign=1), ["metric"])
    return found.filter(pl.col("variant") == "bema", pl.col("portion") == "best 10 %")


def _of_best_tenth(values: Numbers) -> Bounds:
    [row] = _best_tenth(values, values).iter_rows(named=True)
    return row["value"] - row["margin"], row["value"] + row["margin"]


def _of_change(values: Numbers) -> Bounds:
    """Of the change by averaging, where it takes away a fifth, more or less, of log-normal costs."""
    one, other = values.reshape(2, -1)
    [row] = _best_tenth(np.exp(one / 2), np.exp(one / 2 + other / 5 - 0.2)).iter_rows(named=True)
    tenths = [exp(mean) * (1 + deviation * _mean_between((0, 0.1), deviation)) for mean, deviation in _COSTS]
    error = row["change"] - (tenths[1] / tenths[0] - 1)
    return error - row["change_margin"], error + row["change_margin"]


_COSTS = ((0.0, 0.5), (-0.2, sqrt(0.5**2 + 0.2**2)))
"""Mean and deviation of the logarithms of raw and averaged costs."""


def _of_correlation(values: Numbers) -> Bounds:
    one, other = values.reshape(2, -1)
    # With a correlation of 1/2, of which the truth is taken away so that all intervals are to hold 0.
    r = np.corrcoef(one, one / 2 + np.sqrt(0.75) * other)[0, 1]
    found = pl.DataFrame({"r": [r], "shared": [len(one)]}).select(
        **interval_of_correlation(pl.col("r"), pl.col("shared"))
    )
    return found["low"][0] - 0.5, found["high"][0] - 0.5


def _mean_between(quantiles: tuple[float, float], skew: float) -> float:
    """The mean of (exp(skew z) - 1) / skew, z standard normal, between two of its quantiles; of z, without skew."""
    low, high = ndtri(quantiles)
    share = quantiles[1] - quantiles[0]
    if skew == 0:
        return float((exp(-(low**2) / 2) - exp(-(high**2) / 2)) / (share * sqrt(2 * np.pi)))
    return float((exp(skew**2 / 2) * (ndtr(high - skew) - ndtr(low - skew)) / share - 1) / skew)


SKEW = 0.5
"""Of skewed numbers: the logarithms of (1 + SKEW x) are normal with this deviation; the third standardized moment is
1.75, and the mean of such numbers is .27 above their median."""


class Kind(NamedTuple):
    """A kind of interval, made of so many numbers."""

    interval: Callable[[Numbers], Bounds]
    numbers: int
    between: tuple[float, float] | None = (0.0, 1.0)
    """It is of the mean between these quantiles of what the numbers are drawn from; None: of their median, 0."""
    normal_only: bool = False

    def truth(self, skew: float) -> float:
        """What the interval is of."""
        return 0.0 if self.between is None else _mean_between(self.between, skew)


INTERVALS: Mapping[str, Kind] = {
    "Student's, of a mean of 3 seeds": Kind(mean_interval, 3),
    "Student's, of a mean of 5 seeds": Kind(mean_interval, 5),
    "Student's, of a mean of 8 seeds": Kind(mean_interval, 8),
    "Student's paired, 5 pairs": Kind(_of_pairs, 5),
    "Student's paired, 8 pairs": Kind(_of_pairs, 8),
    "of a cell of a matrix, Student's, 5 pairs": Kind(_of_cell(Student()), 5),
    "of a cell of a matrix, bootstrap, 6 pairs": Kind(_of_cell(Bootstrap()), 6),
    "of a cell of a matrix, bootstrap, 12 pairs": Kind(_of_cell(Bootstrap()), 12),
    "of a mean over 5 groups": Kind(_of_margin, 5),
    "of the mean of the best tenth of 120 trials": Kind(_of_best_tenth, 120, between=(0, 0.1)),
    "of the mean of the best tenth of 500 trials": Kind(_of_best_tenth, 500, between=(0, 0.1)),
    "of what averaging changes in the best tenth of 60 trials": Kind(_of_change, 2 * 60, None, normal_only=True),
    "of what averaging changes in the best tenth of 500 trials": Kind(_of_change, 2 * 500, None, normal_only=True),
    "of a median of 6 groups": Kind(_of_median, 6, between=None),
    "of a median of 8 groups": Kind(_of_median, 8, between=None),
    "of a median of 20 groups": Kind(_of_median, 20, between=None),
    "of an interquartile mean, 5 tasks x 5 runs": Kind(_of_tasks(5), 25, between=(0.25, 0.75)),
    "of an interquartile mean, 10 tasks x 10 runs": Kind(_of_tasks(10), 100, between=(0.25, 0.75)),
    "of a correlation over 8 targets, Fisher's": Kind(_of_correlation, 16, None, normal_only=True),
}


def coverage(kind: str, repeats: int, skew: float = 0.0, seed: int = 0) -> float:
    """The share of intervals of this kind that hold the truth."""
    made, random = INTERVALS[kind], np.random.default_rng(seed)
    truth, held = made.truth(skew), 0
    for _ in range(repeats):
        values = random.normal(size=made.numbers)
        low, high = made.interval(np.expm1(skew * values) / skew if skew else values)
        assert low is not None
        assert high is not None
        held += low <= truth <= high
    return held / repeats


# ------------------------------------------------------------------------------------------------------------- claims


def made_study(effect: float, seeds: int, seed: int, conditions: Iterable[str] = CONDITIONS) -> StudyData:
    """An experiment of four arms, of which the second is less by `effect` under every condition.

    All arms share the luck of a seed; beyond it, and beyond that of a condition, they differ by chance.
    """
    random = np.random.default_rng(seed)
    luck = 3 * random.normal(size=seeds)
    trials: list[tuple[int, str, float, str]] = []
    metrics: list[tuple[int, int, str, str, str, float]] = []
    for number, (arm, place) in enumerate((arm, place) for arm in ARMS for place in range(seeds)):
        own = random.normal() / np.sqrt(2)  # so that the difference of two arms has a deviation of 1
        for condition in conditions:
            value = luck[place] + (own if condition == "" else random.normal() / np.sqrt(2))
            value -= effect if arm == "other" else 0.0
            metrics.append((number, 1, "loss", "raw", condition, value))
            if condition == "":
                params = {"arm": arm, "configuration": 0, "seed": place}
                trials.append((number, "finished", value, json.dumps(params)))
    return StudyData(
        study={"name": "made", "objective": "loss/raw", "direction": "minimize"},
        load_trials=lambda: pl.DataFrame(trials, schema=["number", "state", "objective", "params"], orient="row"),
        load_metrics=lambda: [
            pl.DataFrame(metrics, schema=["number", "step", "name", "variant", "condition", "value"], orient="row")
        ],
        load_step_counts=lambda: (0, 0),
    )


def claims(data: StudyData) -> tuple[list[str], list[str]]:
    """What a report says of an experiment: sentences that tell an arm from the baseline, and verdicts of its table."""
    section = Arms(data=data)
    sentences = [text for text in section.findings() if f" is {BETTER} than " in text or f" is {WORSE} than " in text]
    tables = [block for block in section.blocks(FigureNumbers(own=1, sections={})) if isinstance(block, Table)]
    verdicts = [cell for table in tables for row in table.rows for cell in row if cell in (BETTER, WORSE)]
    return sentences, verdicts


def false_claims(studies: int, seeds: int) -> float:
    """The share of studies without effect of which a report says anything, in a sentence or in a cell."""
    return sum(any(claims(made_study(0.0, seeds, seed))) for seed in range(studies)) / studies


def power(effect: float, seeds: int, studies: int) -> float:
    """The share of studies with an effect whose report says so in a sentence."""
    told = 0
    for seed in range(studies):
        sentences, _ = claims(made_study(effect, seeds, seed, conditions=("",)))
        told += any(text.startswith(f"other is {BETTER} than baseline") for text in sentences)
    return told / studies


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--studies",
        type=int,
        default=1_000,
        help="intervals of each kind; four times as many studies without effect, and a quarter with each effect",
    )
    studies = parser.parse_args().studies
    print(f"| interval | holds the truth, of {studies:,} times | of skewed numbers |\n|---|---|---|")
    for name, kind in INTERVALS.items():
        skewed = "" if kind.normal_only else f"{100 * coverage(name, studies, SKEW):.1f} %"
        print(f"| {name} | {100 * coverage(name, studies):.1f} % | {skewed} |")
    many = 4 * studies  # of 4,000 studies a share of 5 % has a standard error of 0.3 %
    print(f"\n| seeds | reports that claim anything, of {many:,} studies without effect |\n|---|---|")
    for seeds in SEEDS:
        print(f"| {seeds} | {100 * false_claims(many, seeds):.1f} % |")
    few = max(1, studies // 4)
    print(f"\nEffects that the report tells, of {few:,} studies each:\n")
    print("| seeds |", " | ".join(f"effect {effect:g}" for effect in EFFECTS), "|")
    print("|---" * (1 + len(EFFECTS)) + "|")
    for seeds in SEEDS:
        print(f"| {seeds} |", " | ".join(f"{100 * power(effect, seeds, few):.0f} %" for effect in EFFECTS), "|")


if __name__ == "__main__":
    main()
