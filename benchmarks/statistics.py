"""What the statistics of reports are worth, on made studies: `python -m benchmarks.statistics [--tables nulls]`.

Prints, as Markdown: how often each kind of interval that a report prints holds what it is of, with normal and with
skewed numbers; how often the table of an experiment without any effect says that an arm is better or worse, by the kind
of its metric and the number of seeds and arms; and how often its report tells an effect, by its size and the number of
seeds.

Legend: an effect is in standard deviations of the paired difference of two arms, which is what seeds leave.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import exp, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr

from benchmarks.options import words_of
from graft.report.data import StudyData
from graft.report.rendering.document import Table
from graft.report.sections import FigureNumbers
from graft.report.sections.arms import Arms
from search.analysis.arms.comparison import compare_arms
from search.analysis.statistics.aggregates import interquartile_interval
from search.analysis.statistics.intervals import Bootstrap, Interval, Student
from search.analysis.statistics.paired import EQUAL, mean_interval, summarize_differences
from search.analysis.statistics.verdicts import BETTER, SURE, WORSE
from search.analysis.study.top_k import mean_margin, median_interval, top_k_statistics
from search.analysis.transfer.affinity import interval_of_correlation

Numbers = NDArray[np.float64]
Bounds = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Lower and upper ends of an interval for each study, of its numbers, [studies, numbers]."""
Draw = Callable[[np.random.Generator, int, int], Numbers]
"""Values of so many arms and seeds, [arms, seeds, conditions]."""

ARMS = ("baseline", "other", "third", "fourth", "fifth", "sixth")
CONDITIONS = ("", "length=8", "length=16")
SEEDS = (3, 4, 5, 8, 12)
EFFECTS = (0.5, 1.0, 1.5, 2.0, 3.0)


# ---------------------------------------------------------------------------------------------------------- intervals


def _each(interval: Callable[[Numbers], tuple[float, float]]) -> Bounds:
    """Return the intervals of many studies by a function of the numbers of one."""

    def bounds(values: Numbers) -> tuple[Numbers, Numbers]:
        low, high = np.array([interval(study) for study in values]).T
        return low, high

    return bounds


def _of_cell(interval: Interval) -> Bounds:
    def bounds(values: Numbers) -> tuple[Numbers, Numbers]:
        numbers = {"mean": values.mean(1), "deviation": values.std(1, ddof=1), "changes": values.tolist()}
        return interval.bounds(pl.DataFrame(numbers).with_columns(pairs=values.shape[1]))

    return bounds


def _of_pairs(values: Numbers) -> tuple[float, float]:
    difference = summarize_differences(values)
    return difference.low, difference.high


def _by_study(values: Numbers, **expressions: pl.Expr) -> pl.DataFrame:
    """Return expressions of the column `x`, the numbers of each study."""
    studies = np.repeat(np.arange(len(values)), values.shape[1])
    return (
        pl.DataFrame({"study": studies, "x": values.ravel()}).group_by("study", maintain_order=True).agg(**expressions)
    )


def _of_margin(values: Numbers) -> tuple[Numbers, Numbers]:
    margin = _by_study(values, margin=mean_margin("x"))["margin"].to_numpy()
    return values.mean(1) - margin, values.mean(1) + margin


def _of_median(values: Numbers) -> tuple[Numbers, Numbers]:
    bounds = _by_study(values, **median_interval("x"))
    return bounds["low"].to_numpy(), bounds["high"].to_numpy()


def _of_tasks(tasks: int) -> Bounds:
    return _each(lambda values: interquartile_interval(list(values.reshape(tasks, -1))))


def _best_tenth(raw: Numbers, averaged: Numbers) -> dict[str, Numbers]:
    """Return the columns of the averaged parameters, a number for each study, of costs [studies, trials]."""
    study, number = (axis.ravel() for axis in np.indices(raw.shape))
    costs = {"raw": raw.ravel(), "bema": averaged.ravel()}
    trials = pl.DataFrame({"study": study, "number": number})
    sides = [trials.with_columns(variant=pl.lit(name), cost=pl.Series(cost)) for name, cost in costs.items()]
    portions = top_k_statistics(pl.concat(sides).with_columns(sign=1), ["study"])
    rows = portions.filter(pl.col("variant") == "bema", pl.col("portion") == "best 10 %").sort("study")
    return {name: rows[name].to_numpy() for name in ("value", "margin", "change", "change_margin")}


def _of_best_tenth(values: Numbers) -> tuple[Numbers, Numbers]:
    columns = _best_tenth(values, values)
    return columns["value"] - columns["margin"], columns["value"] + columns["margin"]


def _of_change(values: Numbers) -> tuple[Numbers, Numbers]:
    """Of the change by averaging, where it takes away a fifth, more or less, of log-normal costs."""
    half, other = np.split(values, 2, axis=1)
    columns = _best_tenth(np.exp(half / 2), np.exp(half / 2 + other / 5 - 0.2))
    tenths = [exp(mean) * (1 + deviation * _mean_between((0, 0.1), deviation)) for mean, deviation in _COSTS]
    error = columns["change"] - (tenths[1] / tenths[0] - 1)
    return error - columns["change_margin"], error + columns["change_margin"]


_COSTS = ((0.0, 0.5), (-0.2, sqrt(0.5**2 + 0.2**2)))
"""Mean and deviation of the logarithms of raw and averaged costs."""


def _of_correlation(values: Numbers) -> tuple[Numbers, Numbers]:
    half, other = np.split(values, 2, axis=1)
    # With a correlation of 1/2, of which the truth is taken away so that all intervals are to hold 0.
    both = zip(half, half / 2 + np.sqrt(0.75) * other, strict=True)
    r = pl.DataFrame({"r": [float(np.corrcoef(*pair)[0, 1]) for pair in both]})
    bounds = r.select(**interval_of_correlation(pl.col("r"), pl.lit(half.shape[1])))
    return bounds["low"].to_numpy() - 0.5, bounds["high"].to_numpy() - 0.5


def _mean_between(quantiles: tuple[float, float], skew: float) -> float:
    """Return the mean of (exp(skew z) - 1) / skew, z standard normal, between two quantiles; of z without skew."""
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

    interval: Bounds
    numbers: int
    between: tuple[float, float] | None = (0.0, 1.0)
    """It is of the mean between these quantiles of what the numbers are drawn from; None: of their median, 0."""
    normal_only: bool = False

    def truth(self, skew: float) -> float:
        """Return what the interval is of."""
        return 0.0 if self.between is None else _mean_between(self.between, skew)


INTERVALS: Mapping[str, Kind] = {
    "Student's, of a mean of 3 seeds": Kind(_each(mean_interval), 3),
    "Student's, of a mean of 5 seeds": Kind(_each(mean_interval), 5),
    "Student's, of a mean of 8 seeds": Kind(_each(mean_interval), 8),
    "Student's paired, 5 pairs": Kind(_each(_of_pairs), 5),
    "Student's paired, 8 pairs": Kind(_each(_of_pairs), 8),
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
    """Return the share of intervals of this kind that hold the truth."""
    made, random = INTERVALS[kind], np.random.default_rng(seed)
    truth, held = made.truth(skew), 0
    for start in range(0, repeats, _TOGETHER):
        values = random.normal(size=(min(_TOGETHER, repeats - start), made.numbers))
        low, high = made.interval(np.expm1(skew * values) / skew if skew else values)
        assert np.isfinite([low, high]).all()
        held += int(((low <= truth) & (truth <= high)).sum())
    return held / repeats


_TOGETHER = 1_000
"""Studies that are computed at once."""


# ------------------------------------------------------------------------------------------------------------- claims


def made_study(effect: float, seeds: int, seed: int, conditions: Sequence[str] = CONDITIONS) -> StudyData:
    """Return an experiment of four arms, of which the second is less by `effect` under every condition.

    All arms share the luck of a seed; beyond it, and beyond that of a condition, they differ by chance.
    """
    values = _draw_normal(np.random.default_rng(seed), 4, seeds)[:, :, : len(conditions)]
    values[1] -= effect
    return study_of(values, "loss", conditions)


def study_of(values: Numbers, metric: str, conditions: Sequence[str] = CONDITIONS) -> StudyData:
    """Return the experiment whose trials have these values, [arms, seeds, conditions], less being better."""
    trials: list[tuple[int, str, float, str]] = []
    metrics: list[tuple[int, int, str, str, str, float]] = []
    for number, (arm, seed) in enumerate(np.ndindex(values.shape[:2])):
        cells = values[arm, seed].tolist()
        params = {"arm": ARMS[arm], "configuration": 0, "seed": seed}
        trials.append((number, "finished", cells[0], json.dumps(params)))
        metrics += [(number, 1, metric, "raw", *pair) for pair in zip(conditions, cells, strict=True)]
    return StudyData(
        study={"name": "made", "objective": f"{metric}/raw", "direction": "minimize"},
        load_trials=lambda: pl.DataFrame(trials, schema=["number", "state", "objective", "params"], orient="row"),
        load_metrics=lambda: [
            pl.DataFrame(metrics, schema=["number", "step", "name", "variant", "condition", "value"], orient="row")
        ],
        load_step_counts=lambda: (0, 0),
    )


# ---------------------------------------------------------------------------------------------- studies without effect


def _draw_normal(random: np.random.Generator, arms: int, seeds: int) -> Numbers:
    """Return normal numbers whose difference between two arms has a deviation of 1 without the luck of the seed."""
    luck = 3 * random.normal(size=(1, seeds, 1))
    return luck + random.normal(size=(arms, seeds, len(CONDITIONS))) / sqrt(2)


def _draw_skewed(random: np.random.Generator, arms: int, seeds: int) -> Numbers:
    """Log-normal numbers, as losses are."""
    luck = 0.3 * random.normal(size=(1, seeds, 1))
    return np.exp(luck + 0.5 * random.normal(size=(arms, seeds, len(CONDITIONS))))


def _draw_accuracy(answers: int) -> Draw:
    """Shares of right answers, of which each model has its own probability, .62 in the middle."""

    def draw(random: np.random.Generator, arms: int, seeds: int) -> Numbers:
        luck = 0.5 * random.normal(size=(1, seeds, 1))
        logit = 0.5 + luck + 0.3 * random.normal(size=(arms, seeds, len(CONDITIONS)))
        return random.binomial(answers, 1 / (1 + np.exp(-logit))) / answers

    return draw


def _draw_high_accuracy(answers: int) -> Draw:
    """Shares of right answers where each is right with a probability of .97."""
    return lambda random, arms, seeds: random.binomial(answers, 0.97, size=(arms, seeds, len(CONDITIONS))) / answers


def _draw_trick(answers: int) -> Draw:
    """Shares of right answers of models of which half find a trick: .97 with it, .1 without."""

    def draw(random: np.random.Generator, arms: int, seeds: int) -> Numbers:
        tricks = random.random((arms, seeds, 1)) < 0.5
        chance = np.broadcast_to(np.where(tricks, 0.97, 0.1), (arms, seeds, len(CONDITIONS)))
        return random.binomial(answers, chance) / answers

    return draw


def _draw_trick_loss(random: np.random.Generator, arms: int, seeds: int) -> Numbers:
    """Losses of models of which half find a trick: about .05 with it, 2 without."""
    tricks = random.random((arms, seeds, 1)) < 0.5
    return np.where(tricks, 0.05, 2.0) * np.exp(0.1 * random.normal(size=(arms, seeds, len(CONDITIONS))))


NULLS: Mapping[str, tuple[str, Draw]] = {
    "normal": ("loss", _draw_normal),
    "log-normal": ("loss", _draw_skewed),
    "loss, a trick found or not": ("loss", _draw_trick_loss),
    "accuracy of 16": ("accuracy", _draw_accuracy(16)),
    "accuracy of 32": ("accuracy", _draw_accuracy(32)),
    "accuracy of 256": ("accuracy", _draw_accuracy(256)),
    "accuracy of 32, 97 % right": ("accuracy", _draw_high_accuracy(32)),
    "accuracy of 256, 97 % right": ("accuracy", _draw_high_accuracy(256)),
    "accuracy of 32, a trick found or not": ("accuracy", _draw_trick(32)),
}
"""Kinds of a metric -> its name, and what draws studies in which all arms are alike, under three conditions."""
NULL_SEEDS = tuple(range(2, 9))
NULL_ARMS = (2, 3, 6)


def false_verdicts(kind: str, arms: int, seeds: int, studies: int) -> float:
    """Return the share of studies without effect whose table of arms has a verdict anywhere."""
    metric, draw = NULLS[kind]
    random = np.random.default_rng([*map(ord, kind), arms, seeds])
    count = 0
    for start in range(0, studies, _TOGETHER):
        made = [draw(random, arms, seeds) for _ in range(min(_TOGETHER, studies - start))]
        count += int(have_verdict(np.stack(made), metric).sum())
    return count / studies


def have_verdict(values: Numbers, metric: str) -> NDArray[np.bool_]:
    """Return for each study whether its table of arms has a verdict; `values` is [studies, arms, seeds, conditions].

    It computes what `compare_arms` does (`compares_as_verdict` is the same for one study), many studies at once.
    """
    cells = np.moveaxis(values, 3, 1)  # [studies, conditions, arms, seeds]
    differences = cells[:, :, 1:] - cells[:, :, :1]
    seeds = differences.shape[-1]
    every = np.sort(cells.reshape(*cells.shape[:2], -1))
    is_continuous = (np.diff(every) > 0).all(-1) & ("accuracy" not in metric)
    mean, largest = differences.mean(-1), np.abs(differences).max(-1)
    gaps = np.diff(np.sort(differences))
    is_equal = gaps.sum(-1) <= EQUAL * largest
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(seeds - 1, -np.abs(mean) / (differences.std(-1, ddof=1) / sqrt(seeds)))
        signs = np.array([*product((1.0, -1.0), repeat=seeds)])
        sums, total = np.abs(differences @ signs.T), np.abs(differences.sum(-1, keepdims=True))
        p_signs = (sums >= total - 1e-12 * np.abs(differences).sum(-1, keepdims=True)).mean(-1)
        is_repeated = 2 * (1 + (gaps > EQUAL * largest[..., None]).sum(-1)) <= seeds
        p = np.where(is_equal, np.nan, p)
        p = np.where(is_repeated, np.fmax(p, p_signs), p)
        if seeds <= 4:
            rest = cells - cells.mean(2, keepdims=True) - cells.mean(3, keepdims=True)
            rest += cells.mean((2, 3), keepdims=True)
            freedom = (cells.shape[2] - 1) * (seeds - 1)
            error = np.sqrt(2 * (rest**2).sum((2, 3)) / freedom / seeds)[..., None]
            p = np.fmax(p, np.where(error > 0, 2 * stdtr(freedom, -np.abs(mean) / error), np.nan))
    least = np.where(is_continuous, 3, 4)[..., None]
    family = np.sort(np.where(seeds >= least, p, np.nan).reshape(len(p), -1))
    factors = (~np.isnan(family)).sum(-1, keepdims=True) - np.arange(family.shape[-1])
    return np.asarray((np.maximum.accumulate(family * factors, axis=-1) < SURE).any(-1))


def compares_as_verdict(values: Numbers, metric: str) -> bool:
    """Return whether `compare_arms` gives a table of these values, [arms, seeds, conditions], a verdict."""
    arm, seed, condition = (axis.ravel() for axis in np.indices(values.shape))
    places = {"condition": [CONDITIONS[code] for code in condition], "arm": [ARMS[code] for code in arm], "seed": seed}
    results = pl.DataFrame({**places, "value": values.ravel()}).with_columns(state=pl.lit("finished"))
    return bool(compare_arms(results, ARMS[0], "minimize", metric=metric).table["verdict"].is_in([BETTER, WORSE]).any())


# ------------------------------------------------------------------------------------------------- what reports say


def claims(data: StudyData) -> tuple[list[str], list[str]]:
    """Return a report's sentences that tell an arm from the baseline, and the verdicts of its table."""
    section = Arms(data=data)
    sentences = [text for text in section.findings() if f" is {BETTER} than " in text or f" is {WORSE} than " in text]
    tables = [block for block in section.blocks(FigureNumbers(own=1, sections={})) if isinstance(block, Table)]
    verdicts = [cell for table in tables for row in table.rows for cell in row if cell in (BETTER, WORSE)]
    return sentences, verdicts


def false_claims(kind: str, arms: int, seeds: int, studies: int) -> float:
    """Return the share of studies without effect of which a report says anything, in a sentence or in a cell."""
    metric, draw = NULLS[kind]
    random = np.random.default_rng([*map(ord, kind), arms, seeds])
    return sum(any(claims(study_of(draw(random, arms, seeds), metric))) for _ in range(studies)) / studies


def power(effect: float, seeds: int, studies: int) -> float:
    """Return the share of studies with an effect whose report says so in a sentence."""
    count = 0
    for seed in range(studies):
        sentences, _ = claims(made_study(effect, seeds, seed, conditions=("",)))
        count += any(text.startswith(f"other is {BETTER} than baseline") for text in sentences)
    return count / studies


def main() -> None:
    """Print the tables that are asked for."""
    tables: Mapping[str, Callable[[int], None]] = {
        "intervals": _print_intervals,
        "nulls": _print_nulls,
        "power": _print_power,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1_000, help="studies of each kind, or intervals")
    parser.add_argument("--tables", type=words_of(tables), default=[*tables], help="of " + ", ".join(tables))
    options = parser.parse_args()
    for table in options.tables:
        tables[table](options.studies)


def _print_intervals(studies: int) -> None:
    print(f"| interval | holds the truth, of {studies:,} times | of skewed numbers |\n|---|---|---|")
    for name, kind in INTERVALS.items():
        skewed = "" if kind.normal_only else f"{100 * coverage(name, studies, SKEW):.1f} %"
        print(f"| {name} | {100 * coverage(name, studies):.1f} % | {skewed} |", flush=True)


def _print_nulls(studies: int) -> None:
    print(f"\nStudies without effect that have a verdict, of {studies:,} each, with 2 to 8 seeds, in %:\n")
    print("| metric | arms |", " | ".join(f"{seeds} seeds" for seeds in NULL_SEEDS), "|")
    print("|---" * (2 + len(NULL_SEEDS)) + "|")
    for kind, arms in product(NULLS, NULL_ARMS):
        shares = [100 * false_verdicts(kind, arms, seeds, studies) for seeds in NULL_SEEDS]
        print(f"| {kind} | {arms} |", " | ".join(f"{share:.1f}" for share in shares), "|", flush=True)


def _print_power(studies: int) -> None:
    print(f"\nEffects that the report tells, of {studies:,} studies of four arms each:\n")
    print("| seeds |", " | ".join(f"effect {effect:g}" for effect in EFFECTS), "|")
    print("|---" * (1 + len(EFFECTS)) + "|")
    for seeds in SEEDS:
        shares = [100 * power(effect, seeds, studies) for effect in EFFECTS]
        print(f"| {seeds} |", " | ".join(f"{share:.0f} %" for share in shares), "|", flush=True)


if __name__ == "__main__":
    main()
