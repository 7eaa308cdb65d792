"""Advice from trials of a task: noise over seeds, the best of so many trials, and good ranges.

Legend: trials of one *setting* can be compared: a configured task, a model, an objective and a
number of steps. A *cost* is an objective turned so that less is better, infinite for a trial that
diverged. *Winners* are the best tenth of the random trials of a study.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import chdtri, kolmogorov

from search.analysis.statistics.best_of import expected_best, mark_best_tenth
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.power import correct_spread, count_seeds
from search.analysis.statistics.verdicts import SURE
from spaces.records import Scalar
from spaces.settings import sign_of

Numbers = NDArray[np.float64]

COUNTS = (1, 8, 32, 128, 512)
"""Numbers of trials whose expected best is given."""
MULTIPLES = (0.5, 1.0, 2.0)
"""Differences to count seeds for if none is given, in standard deviations of the noise."""
CONFIDENCE = 0.95
FEWEST = 10
"""A study of fewer trials has no best tenth."""
FEWEST_WINNERS = 5
"""A knob with fewer winners is left out."""
_RESAMPLES = 4_999


class Setting(NamedTuple):
    """The fields that trials must share to be compared."""

    task: str
    """The task's section of a configuration, as JSON."""
    model: str
    objective: str
    direction: str
    at: str
    """`best` or `last`: the validation of a trial that counts."""
    steps: int

    @property
    def sign(self) -> float:
        """The factor that makes an objective a cost."""
        return sign_of(self.direction)

    def describe(self) -> str:
        """Return `add (digits 3), model transformer, minimize loss/raw (last), 640 steps`."""
        task: Mapping[str, Any] = json.loads(self.task)
        texts = {
            name: json.dumps(value) if isinstance(value, dict | list) else str(value) for name, value in task.items()
        }
        fields = ", ".join(f"{name} {text}" for name, text in texts.items() if name != "name")
        words = f"{task['name']} ({fields})" if fields else str(task["name"])
        return f"{words}, model {self.model}, {self.direction} {self.objective} ({self.at}), {self.steps:,} steps"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The trials of one study in one setting that finished, diverged, or were pruned."""

    study: str
    setting: Setting
    trials: pl.DataFrame
    """seed, state, objective (null for a trial that diverged), config and params (JSON texts)."""
    is_random: bool
    """True if the trials were drawn at random and none was stopped early."""

    @property
    def costs(self) -> Numbers:
        """The costs, [trials]."""
        objectives = self.trials["objective"].cast(pl.Float64).fill_null(np.nan)
        values = self.setting.sign * objectives.to_numpy()
        return np.where(np.isfinite(values), values, inf)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The spread of trials of one configuration that differ in nothing but their seed."""

    spread: float
    """Standard deviation over seeds, pooled over configurations, corrected (`correct_spread`)."""
    low: float
    high: float
    """The interval of the standard deviation, by the chi-squared distribution."""
    configurations: int
    trials: int


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best objective of so many random trials."""

    trials: int
    expected: float | None
    """None if more trials are asked for than are known, or all of them may have diverged."""
    better: float | None
    worse: float | None
    """Ends of the interval of the best of so many new trials; None if too few trials are known."""


@dataclass(frozen=True, kw_only=True)
class SettingAdvice:
    """All that is known of one setting."""

    setting: Setting
    studies: Sequence[str]
    trials: int
    diverged: int
    random: int
    """The number of these trials that were drawn at random."""
    noise: Noise | None
    """None if no configuration was trained from two seeds."""
    seeds: Sequence[tuple[float, int]]
    """A difference of two arms, and the seeds of each that find it four times in five."""
    best: Sequence[Best]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A drawn value, and where its winners lie."""

    path: str
    winners: int
    trials: int
    low: float | None
    high: float | None
    """The 10 % and the 90 % quantile of winners; None for a value that is not a number."""
    least: float | None
    most: float | None
    """The same quantiles of all trials."""
    options: Mapping[str, tuple[int, int]]
    """Option -> winners and trials that have it, for a value that is not a number."""
    q: float | None
    """p of winners that lie as by chance, by Holm's correction over all knobs; None: not random."""

    @property
    def is_told(self) -> bool:
        """True if winners lie otherwise than by chance."""
        return self.q is not None and self.q < SURE


@dataclass(frozen=True, kw_only=True)
class TaskAdvice:
    """The advice from trials of some tasks."""

    settings: Sequence[SettingAdvice]
    """The settings with the most trials come first."""
    knobs: Sequence[Knob]
    """Those told from chance first, the least probable one at the head."""


def advise_task(
    evidence: Sequence[Evidence], difference: float | None = None, counts: Sequence[int] = COUNTS
) -> TaskAdvice:
    """Return the advice; `difference` of two arms, in the objective's unit, sets the seeds."""
    by_setting: dict[Setting, list[Evidence]] = {}
    for sample in evidence:
        by_setting.setdefault(sample.setting, []).append(sample)
    settings = [_advise_setting(setting, samples, difference, counts) for setting, samples in by_setting.items()]
    settings.sort(key=lambda advice: -advice.trials)
    return TaskAdvice(settings=settings, knobs=find_ranges(evidence))


def _advise_setting(
    setting: Setting, evidence: Sequence[Evidence], difference: float | None, counts: Sequence[int]
) -> SettingAdvice:
    costs = np.concatenate([sample.costs for sample in evidence])
    random = [sample.costs for sample in evidence if sample.is_random]
    noise = estimate_noise(evidence)
    seeds: list[tuple[float, int]] = []
    if noise is not None and noise.spread > 0:
        wanted = [difference] if difference else [multiple * noise.spread for multiple in MULTIPLES]
        # Arms are taken for independent: what two trials share by their seed is not known here.
        seeds = [(effect, count_seeds(sqrt(2) * noise.spread, effect, SURE)) for effect in wanted]
    drawn = np.concatenate(random) if random else np.empty(0)
    return SettingAdvice(
        setting=setting,
        studies=[sample.study for sample in evidence],
        trials=len(costs),
        diverged=int(np.isinf(costs).sum()),
        random=len(drawn),
        noise=noise,
        seeds=seeds,
        best=predict_best(drawn, setting.sign, counts) if len(drawn) else (),
    )


def estimate_noise(evidence: Sequence[Evidence]) -> Noise | None:
    """Return the spread over seeds of configurations that were trained from two seeds or more."""
    by_size = sorted(evidence, key=lambda sample: -sample.trials.height)
    trials = pl.concat([sample.trials.with_columns(study=pl.lit(sample.study)) for sample in by_size])
    # The objective of a pruned trial is of fewer steps than those of others.
    known = trials.filter(pl.col("objective").is_finite(), pl.col("state") != "pruned")
    # A trial that several studies trained counts once, for the largest of them.
    known = known.unique(["config", "seed"], keep="first", maintain_order=True)
    squares_of = (pl.col("objective") - pl.col("objective").mean()).pow(2).sum()
    groups = known.group_by("study", "config", maintain_order=True).agg(pl.len(), squares=squares_of)
    several = groups.filter(pl.col("len") > 1)
    squares, count = float(several["squares"].sum()), int(several["len"].sum())
    freedom = count - several.height
    if not freedom:
        return None
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    low, high = (sqrt(squares / float(chdtri(freedom, tail))) for tail in tails)
    spread = correct_spread(sqrt(squares / freedom), freedom)
    return Noise(spread=spread, low=low, high=high, configurations=several.height, trials=count)


def predict_best(costs: Numbers, sign: float, counts: Sequence[int]) -> list[Best]:
    """Return the best of so many new trials that are drawn as these were.

    The interval is a prediction, exact for any distribution. All of N new trials are worse than the
    j-th best of n with the probability that the j best of all n + N are old ones, n/(n+N)
    (n-1)/(n+N-1) ... If one new trial in forty or more may be better than all known ones, there is
    no better end. Source: David and Nagaraja, "Order Statistics", 2003, section 7.3.
    """
    ordered, n = np.sort(costs), len(costs)
    means = iter(expected_best(costs, [count for count in counts if count <= n]).tolist())
    predictions: list[Best] = []
    for count in counts:
        old = n - np.arange(n)
        # P(the best of `count` is worse than the j-th best), j = 1 ... n
        worse = np.cumprod(old / (old + count))
        low = int((worse >= (1 + CONFIDENCE) / 2).sum())
        high = int((worse > (1 - CONFIDENCE) / 2).sum())
        ends = float(ordered[low - 1]) if low else -inf, float(ordered[high]) if high < n else inf
        better, worst = (sign * end if isfinite(end) else None for end in ends)
        mean = next(means) if count <= n else inf
        expected = sign * mean if isfinite(mean) else None
        predictions.append(Best(trials=count, expected=expected, better=better, worse=worst))
    return predictions


def find_ranges(evidence: Sequence[Evidence]) -> list[Knob]:
    """Return for each drawn value where the winners lie, and whether that differs from chance.

    Winners are chosen in each study, so that settings need no common scale. A number is tested by
    its ranks among the trials of its study, which are uniform if it does not matter (Kolmogorov and
    Smirnov, with Stephens' correction of 1970 for few numbers); another value by how often winners
    have each option (chi-squared, over random choices of as many winners). Only random trials are
    tested; without any, others give ranges alone.
    """
    enough = [sample for sample in evidence if sample.trials.height >= FEWEST]
    random = [sample for sample in enough if sample.is_random]
    columns: dict[str, list[_Column]] = {}
    for sample in random or enough:
        rows: list[Mapping[str, Any]] = [json.loads(text) for text in sample.trials["params"]]
        winners = mark_best_tenth(sample.costs)
        for path in dict.fromkeys(path for row in rows for path in row):
            has = np.array([row.get(path) is not None for row in rows])
            values = [row[path] for row in rows if row.get(path) is not None]
            if len(set(map(str, values))) > 1:
                column = _Column(path=path, values=values, is_winner=winners[has])
                columns.setdefault(path, []).append(column)
    kept = {
        path: parts for path, parts in columns.items() if sum(part.is_winner.sum() for part in parts) >= FEWEST_WINNERS
    }
    p = [_test(parts) if random else math.nan for parts in kept.values()]
    adjusted = adjust_p(np.array(p)).tolist() if random else p
    adjusted = [None if math.isnan(q) else q for q in adjusted]
    knobs = [_describe(parts, q) for parts, q in zip(kept.values(), adjusted, strict=True)]
    return sorted(knobs, key=lambda knob: (knob.q is None, knob.q, knob.path))


@dataclass(frozen=True, kw_only=True)
class _Column:
    path: str
    values: Sequence[Scalar]
    is_winner: NDArray[np.bool_]

    @property
    def is_number(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def _test(columns: Sequence[_Column]) -> float:
    """Return the p of winners that have these values by chance."""
    rng = np.random.default_rng(0)
    if all(column.is_number for column in columns):
        ranks: list[Numbers] = []
        for column in columns:
            values = np.array(column.values, dtype=np.float64)
            order = np.lexsort((rng.random(len(values)), values))  # ties in a random order
            rank = np.empty(len(values))
            rank[order] = (np.arange(len(values)) + 0.5) / len(values)
            ranks.append(rank[column.is_winner])
        pooled = np.sort(np.concatenate(ranks))
        count = len(pooled)
        steps = np.arange(count + 1) / count
        distance = max((steps[1:] - pooled).max(), (pooled - steps[:-1]).max())
        return float(kolmogorov((sqrt(count) + 0.12 + 0.11 / sqrt(count)) * distance))
    options = sorted({str(value) for column in columns for value in column.values})
    seen, expected = np.zeros(len(options)), np.zeros(len(options))
    drawn = np.zeros((_RESAMPLES, len(options)))
    for column in columns:
        texts = np.array([options.index(str(value)) for value in column.values])
        counts, winners = np.bincount(texts, minlength=len(options)), int(column.is_winner.sum())
        seen += np.bincount(texts[column.is_winner], minlength=len(options))
        expected += winners * counts / len(texts)
        drawn += rng.multivariate_hypergeometric(counts, winners, _RESAMPLES)
    known = expected > 0  # an option may occur only where a study has no winners
    statistic, others = (
        ((wins[..., known] - expected[known]) ** 2 / expected[known]).sum(axis=-1) for wins in (seen, drawn)
    )
    return float((1 + (others >= statistic - 1e-9).sum()) / (1 + _RESAMPLES))


def _describe(columns: Sequence[_Column], q: float | None) -> Knob:
    values = [value for column in columns for value in column.values]
    is_winner = np.concatenate([column.is_winner for column in columns])
    ends: list[float | None] = [None] * 4
    options: dict[str, tuple[int, int]] = {}
    if all(column.is_number for column in columns):
        numbers = np.array(values, dtype=np.float64)
        parts = numbers[is_winner], numbers
        ends = [float(end) for part in parts for end in np.quantile(part, (0.1, 0.9))]
    else:
        texts = np.array([str(value) for value in values])
        options = {
            str(option): (int((texts[is_winner] == option).sum()), int((texts == option).sum()))
            for option in np.unique(texts)
        }
    low, high, least, most = ends
    return Knob(
        path=columns[0].path, winners=int(is_winner.sum()), trials=len(values), low=low, high=high, least=least,
        most=most, options=options, q=q,
    )  # fmt: skip
