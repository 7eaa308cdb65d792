"""The use of a prior in a search: its statements, the winners, and the cost without a prior.

Legend: a trial is *proposed* if the prior, or a model of the search's own trials, chose it, and
*unrestricted* if it is a random draw of the whole space. A trial that diverged or is not feasible
costs infinity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from search.analysis.statistics.aggregates import probability_of_improvement
from search.analysis.statistics.best_of import mark_best_tenth
from search.samplers.learned import Learned, LearnedStrategy
from search.samplers.random import RandomSearch
from search.samplers.warm import UNRESTRICTED, Warm, WarmStrategy
from spaces.errors import PluginError
from spaces.plugins import name_of
from spaces.records import Outcome
from spaces.space import Space

Numbers = NDArray[np.float64]

PROPOSED = "proposed"
BY_HAND = "by hand"
FEWEST = 8
"""With fewer unrestricted trials, the cost of a cold search is unknown."""
_FEWEST_COMPARED = 2
"""With fewer trials of a kind, the two kinds are not compared."""
CONFIDENCE = 0.95
READ = ("number", "group_number", "state", "objective", "feasible", "draws")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The trials of one origin."""

    name: str
    trials: int
    """Those that finished, were stopped, or diverged."""
    best: float | None
    """The best objective of feasible trials; None if there is none."""
    median_rank: float
    """The median of their ranks among all trials that ended; 1 is the best."""
    winners: int
    """Those among the best tenth of all trials."""


@dataclass(frozen=True, kw_only=True)
class ColdCost:
    """The number of random trials that find one as good as the best."""

    trials: float | None
    """None if no unrestricted trial is as good."""
    low: float
    high: float | None
    """None if the unrestricted trials set no upper end."""
    among: int
    """The unrestricted trials that the estimate is from."""


@dataclass(frozen=True, kw_only=True)
class PriorUse:
    """What a prior did for a search."""

    said: Sequence[str]
    """Sentences on what the prior was and how far it was trusted."""
    origins: Sequence[Origin]
    best_number: int
    best_origin: str
    better: tuple[float, float, float] | None
    """Probability that a proposed trial beats an unrestricted one, with its interval, if known."""
    cold: ColdCost | str
    """The cost of a cold search, or the reason that it is unknown."""


def assess_prior(space: Space, trials: pl.DataFrame) -> PriorUse | None:
    """Return what a prior did, by a study's trials (columns READ); None without prior, draw or result.

    The trials must be without copies of population-based training, which have the result of their lineage.
    """
    sampler = space.search.sampler
    ended = trials.filter(pl.col("state").is_in(["finished", "pruned", "diverged"])).sort("number")
    # The samplers, too, take a trial that is not feasible for one without an objective.
    ended = ended.with_columns(objective=pl.when(pl.col("feasible").fill_null(value=True)).then("objective"))
    has_prior = isinstance(sampler, Learned | Warm) and space.draws
    if not has_prior or ended["objective"].drop_nulls().is_empty():
        return None
    sign = space.search.signs[0]
    values = sign * ended["objective"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    costs = np.where(np.isfinite(values), values, inf)
    said, origin_of, why_unknown = (
        _read_warm(space, sampler) if isinstance(sampler, Warm) else _read_learned(space, ended)
    )
    numbers, draws = ended["number"].to_list(), [json.loads(text) for text in ended["draws"]]
    names = np.array([origin_of(number, point) for number, point in zip(numbers, draws, strict=True)])
    best = int(np.argmin(costs))
    free, proposed = names == UNRESTRICTED, ~np.isin(names, [UNRESTRICTED, BY_HAND])
    return PriorUse(
        said=said,
        origins=_summarise(names, costs, sign),
        best_number=ended["number"][best],
        best_origin=str(names[best]),
        better=compare_origins(costs[proposed], costs[free]),
        cold=why_unknown or estimate_cold_cost(costs[free], float(costs[best])),
    )


OriginOf = Callable[[int, Mapping[str, float]], str]


def _read_learned(space: Space, ended: pl.DataFrame) -> tuple[list[str], OriginOf, str | None]:
    random = RandomSearch().begin(space, [])

    def origin_of(number: int, draws: Mapping[str, float]) -> str:
        # A random trial's coordinates follow from seed and number; no other has them by chance.
        [drawn] = random.ask(range(number, number + 1))
        return UNRESTRICTED if drawn.draws == draws else PROPOSED

    outcomes = [
        Outcome(number=number, group=group, draws=json.loads(draws), objective=objective, state=state)
        for number, group, state, objective, _, draws in ended.select(READ).iter_rows()
    ]
    settings: Any = space.search.sampler
    try:
        strategy = LearnedStrategy(space, outcomes, settings)
    except PluginError as error:  # without scikit-learn, or its file is gone
        return [f"What the prior said cannot be known here: {error}."], origin_of, None
    tasks, trust = strategy.known_tasks, strategy.refit_and_rank_correlations()
    count = f"{len(tasks)} task{'s' * (len(tasks) != 1)}"
    first = f"The prior was learnt from {count}; it chose at most {settings.most_unjudged} trials before it was judged."
    if trust is None:
        return [first, "Too few trials have ended to judge it."], origin_of, None
    ranks = f"Its ranks of the trials correlate with the real ones by {trust[0]:.2f}"
    model = f"those of the search's own model by {trust[1]:.2f} (out of bag; both shrunk for few trials)"
    weights = "their squares are the weights" if max(trust) > 0 else "with neither above 0 all trials are random"
    if not strategy.counts_prior and trust[1] > 0:
        weights = "after so many trials that model alone counts"
    return [first, f"{ranks}, {model}: {weights}."], origin_of, None


def _read_warm(space: Space, sampler: Warm) -> tuple[list[str], OriginOf, str | None]:
    strategy: Any = sampler.begin(space, [])
    assert isinstance(strategy, WarmStrategy)
    ranges = [f"{name} {low:.2f} to {high:.2f}" for name, (low, high) in sampler.ranges().items()]
    said = [f"The prior had {len(sampler.points())} candidates, which are tried first."]
    if ranges:
        said.append(f"Its box, in coordinates of the draws: {', '.join(ranges)}; the floor is {sampler.floor:g}.")

    def origin_of(number: int, draws: Mapping[str, float]) -> str:
        # Without a model a trial's coordinates follow from seed and number; those by hand do not.
        if not sampler.sampler.learns and strategy.ask(range(number, number + 1))[0].draws != draws:
            return BY_HAND
        return strategy.origin(number)

    why = f"its unrestricted trials are not random, {name_of(sampler.sampler)} chose them"
    return said, origin_of, why if sampler.sampler.learns else None


def _summarise(names: NDArray[np.str_], costs: Numbers, sign: float) -> list[Origin]:
    ranks = pl.Series(costs).rank().to_numpy()
    is_winner = mark_best_tenth(costs)
    origins: list[Origin] = []
    for name in dict.fromkeys(names.tolist()):
        mask = names == name
        least = float(costs[mask].min())
        origins.append(
            Origin(
                name=name,
                trials=int(mask.sum()),
                best=sign * least if least < inf else None,
                median_rank=float(np.median(ranks[mask])),
                winners=int(is_winner[mask].sum()),
            )
        )
    return origins


def compare_origins(proposed: Numbers, free: Numbers) -> tuple[float, float, float] | None:
    """Return the probability that a proposed trial costs less than an unrestricted one.

    A tie counts one half. The 95 % interval that follows has as ends the probabilities of which the
    estimate is a quantile, if it is normal with the variance of exponential costs. Source: Newcombe
    2006, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic",
    part 2, method 5.
    """
    if min(len(proposed), len(free)) < _FEWEST_COMPARED:
        return None
    probability = probability_of_improvement([proposed], [free])
    size, product = (len(proposed) + len(free)) / 2 - 1, len(proposed) * len(free)
    z = float(ndtri((1 + CONFIDENCE) / 2))

    def excess(truth: float) -> float:
        spread = (1 - truth) / (2 - truth) + truth / (1 + truth)
        variance = truth * (1 - truth) * (1 + size * spread) / product
        return abs(probability - truth) - z * sqrt(variance)

    # At the estimates 0 and 1 the variance is 0, too: the other end's root is a little further in.
    low: Any = brentq(excess, 0.0, min(probability, 1 - 1e-9)) if probability > 0 else 0.0
    high: Any = brentq(excess, max(probability, 1e-9), 1.0) if probability < 1 else 1.0
    return probability, float(low), float(high)


def estimate_cold_cost(free: Numbers, best: float) -> ColdCost | str:
    """Return how many random trials find one that costs at most `best`, by the unrestricted trials.

    The share of random trials as good as `best` has Clopper and Pearson's interval (Biometrika
    1934), and the trials needed are on average its inverse. With too few, return the reason.
    """
    count, good = len(free), int((free <= best).sum())
    if count < FEWEST:
        return f"{count} unrestricted trials have ended, and fewer than {FEWEST} tell nothing"
    tail = (1 - CONFIDENCE) / 2
    most = float(betaincinv(good + 1, count - good, 1 - tail)) if good < count else 1.0
    least = float(betaincinv(good, count - good + 1, tail)) if good else 0.0
    trials, high = (count / good, 1 / least) if good else (None, None)
    return ColdCost(trials=trials, low=1 / most, high=high, among=count)
