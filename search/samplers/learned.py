"""The sampler `learned`, which starts from trials on other tasks (its prior) and learns from its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from search.samplers import Sampler, Strategy
from search.samplers._features import Floats, fit_forest, flatten, predict_each, to_quantiles
from search.samplers._points import RandomPoints
from search.samplers._prior import PACKAGED, LearnedPrior, read_prior
from search.samplers.random import RandomSearch
from spaces.plugins import Examples
from spaces.plugins.fields import file, knob, size
from spaces.plugins.files import FilePath
from spaces.records import Draws, Outcome, Trial
from spaces.seeds import stream_word

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

_STREAM = int.from_bytes(b"learned", "little")
"""Separates this sampler's random numbers from those of `random` with the same seed."""
_POOL = 768
"""Random configurations in a pool, of which the next trials are chosen."""
_ASKS = 128
"""Trials for which one pool is used, while the prior ranks pools."""
_LATER_ASKS = 768
"""Trials for which a later pool is used."""
_LATER_DRAWN = 384
"""Configurations drawn for a later pool."""
_COPIES = 8
"""How often a later pool has each of these: as drawn, and with its numbers drawn again."""
_TREES = 40
"""Trees of a forest."""
_SAMPLED_TREES = 8
"""Trees of each forest, drawn at random for a trial, whose mean ranks the pool."""
_PRIOR_UNTIL = 512
"""Ended trials after which the prior is ignored: later pools are ranked by the search's own model alone."""
_MOST_FITTED = 1000
"""Most trials that the search's own model is fitted to: half are the newest, half the best."""
_FEWEST = 8
"""Trials that have to end before the search's own model is fitted."""
_PORTFOLIO_EVERY = 4
"""Until a model is fitted, every fourth trial is near a configuration of the portfolio that was not tried yet."""
_DOUBT = 8
"""Weight, in trials, of the rank correlation assumed at first: 1/2 for the prior, 0 for the own model."""


@final
@dataclass(frozen=True, kw_only=True)
class Learned(Sampler):
    """A sampler that learns where good trials lie, first from trials on other tasks, then from its own.

    A portfolio is a list of configurations of which at least one is good on each task of the prior. Until eight
    trials have ended, every fourth one is near the next one of the portfolio, and the others are random:
    a wrong prior costs no more than the portfolio's trials. Later a share `floor` of the trials is random,
    and each of the others is the best of a pool of random configurations. They are ranked by a few trees, drawn at
    random, of each of two forests: the prior's, fitted to trials on other tasks, and the search's own, fitted
    to quantiles of its outcomes (as in Thompson sampling; Kandasamy et al., AISTATS 2018; Salinas et al.,
    ICML 2020). A forest counts by the square of its rank correlation with the outcomes, the own one by that
    of its out-of-bag predictions. At 0 or below it does not count; if neither does, all trials are random.
    Hundreds can be asked for at once, without waiting for outcomes.

    Needs scikit-learn: `pip install 'graft-search[learn]'`. Draws that a group shares are random.
    """

    EXAMPLES: ClassVar[Examples] = ({"portfolio": 4, "floor": 0.1},)

    prior: FilePath = file(optional=True)
    """A file that `search learn` wrote; the packaged prior if it is left out."""
    portfolio: int = size(8, low=0)
    """The most configurations of the portfolio that are tried, until eight trials have ended; a prior has 16."""
    floor: float = knob(0.25, low=0, high=1)
    """The share of later trials that are random."""

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on a study; raises PluginError, one line, without scikit-learn or if the file is no prior."""
        return LearnedStrategy(space, outcomes, self)


@cache
def _fit_prior(path: str, digest: str) -> tuple[LearnedPrior, Any]:
    """Return a prior and the forest fitted to it; `digest` is for the cache alone, as a file may change."""
    prior = read_prior(Path(path))
    return prior, fit_forest(prior.rows, prior.quantiles, _TREES, 0)


@dataclass(kw_only=True)
class _Pool:
    key: tuple[int, int]
    """Its number, and the group whose draws its configurations share."""
    points: Floats
    """Coordinates, [configurations, draws]; -1 for a draw that a configuration does not have."""
    rows: NDArray[np.float32]
    """The configurations, [configurations, columns of the prior]; empty where `prior` is None."""
    network: str
    """The name of the configurations' model; empty if they have several."""
    prior: Floats | None
    """Predictions of each tree of the prior, [trees, configurations]; None if it does not rank the pool."""
    own: Floats | None
    """Predictions of each tree of the search's own model; None until it is fitted."""
    is_taken: NDArray[np.bool_]
    """Whether each configuration was asked."""


@final
class LearnedStrategy(Strategy):
    """The state of `learned` in one study.

    A trial's pool follows from its number while the prior ranks it. The search's own model is fitted again
    when it has a quarter more outcomes. A resumed search fits it at once, and so may ask other trials than it
    would have asked without the interruption, but none that were asked before.
    """

    def __init__(self, space: Space, outcomes: Sequence[Outcome], settings: Learned) -> None:
        path = settings.prior.path if settings.prior else str(PACKAGED)
        self._prior, self._forest = _fit_prior(path, settings.prior.digest if settings.prior else "")
        self._space = space
        self._settings = settings
        self._random = RandomSearch().begin(space, [])
        self._draws = space.draws
        self._points = RandomPoints(space.search.seed ^ _STREAM, self._draws)
        self._groups = RandomPoints(space.search.seed, space.group_draws)
        self._sign = space.search.signs[0]
        self._outcome_points: list[Floats] = []
        """Coordinates of the trials that ended, each [draws]."""
        self._costs: list[float] = []
        """Their objectives, with the sign that makes less better; infinite for the worst."""
        self._rows: list[NDArray[np.float32]] = []
        """The first _PRIOR_UNTIL of them, each [columns of the prior]."""
        self._asked: set[bytes] = set()
        self._pool: _Pool | None = None
        self._own_forest: Any = None
        # Outcomes at the own model's last fit; rank correlations of the prior and of that model (_DOUBT).
        self._fitted, self._trust, self._own_trust = 0, 0.0, 0.0
        self._asked |= {self._to_point(outcome.draws).tobytes() for outcome in outcomes}
        self.tell(outcomes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended; one that diverged, failed or is not feasible counts as the worst."""
        for outcome in outcomes:
            if outcome.state not in ("finished", "pruned", "diverged", "failed"):
                continue
            if len(self._rows) < _PRIOR_UNTIL:
                config = self._space.resolve(outcome.number, outcome.draws).config
                self._rows.append(self._prior.encoder.encode([flatten(config)])[0])
            self._outcome_points.append(self._to_point(outcome.draws))
            self._costs.append(
                np.inf if outcome.objective is None or not outcome.feasible else self._sign * outcome.objective
            )

    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers, in order."""
        if len(self._costs) >= max(_FEWEST, self._fitted + self._fitted // 4 + 1):
            self._fit()
        return [self._ask(number) for number in numbers]

    @property
    def known_tasks(self) -> Sequence[str]:
        """The tasks that the prior was learnt from."""
        return self._prior.tasks

    def refit_and_rank_correlations(self) -> tuple[float, float] | None:
        """Fit the search's own model again; return the rank correlations of the prior and of it with the outcomes.

        They are 0 at least, and shrunk for few trials; their squares are the weights. None while fewer than eight
        trials have ended.
        """
        if len(self._costs) < _FEWEST:
            return None
        self._fit()
        return self._trust, self._own_trust

    def _ask(self, number: int) -> Trial:
        pool, row = None, None
        if self._own_forest is not None:
            word = stream_word(self._space.search.seed ^ _STREAM, number)
            if word >= self._settings.floor * 2.0**64:
                pool = self._draw_pool(number)
                row = self._best(number, pool)
        elif number % _PORTFOLIO_EVERY == 0 and number // _PORTFOLIO_EVERY < self._settings.portfolio:
            pool = self._draw_pool(number)
            row = self._near_portfolio(number // _PORTFOLIO_EVERY, pool)
        if pool is None or row is None:
            return self._random.ask(range(number, number + 1))[0]
        pool.is_taken[row] = True
        point = pool.points[row]
        self._asked.add(point.tobytes())
        return self._resolve(number, point.tolist())

    def _to_point(self, draws: Draws) -> Floats:
        return np.array([draws.get(draw.name, -1.0) for draw in self._draws])

    def _draw_pool(self, number: int) -> _Pool:
        """Return the pool that the trial of this number is chosen from, the current one or a new one."""
        by_prior = len(self._rows) < _PRIOR_UNTIL
        group = number // self._space.search.group if self._space.search.group > 1 else 0
        key = number // (_ASKS if by_prior else _LATER_ASKS), group
        if self._pool is not None and self._pool.key == key:
            return self._pool
        # A later pool starts where its numbers end, whichever of them asks first: a resumed search draws it again.
        pools = key[0] if by_prior else (key[0] + 1) * _LATER_ASKS // _ASKS
        points = self._points.rows((pools + group) * _POOL, _POOL if by_prior else _LATER_DRAWN)
        if self._space.search.group > 1:
            points[:, : len(self._space.group_draws)] = self._groups.rows(group, 1)
        trials = [self._resolve(number, point) for point in points.tolist()]
        points = np.stack([self._to_point(trial.draws) for trial in trials])
        rows, network, prior = np.empty((0, 0), np.float32), "", None
        if by_prior:
            configs = [flatten(trial.config) for trial in trials]
            rows = self._prior.encoder.encode(configs)
            models = {str(config["model"]) for config in configs}
            network = models.pop() if len(models) == 1 else ""
            prior = predict_each(self._forest, rows)
        else:
            points = self._redraw(key[0], points)
        self._pool = _Pool(
            key=key, points=points, rows=rows, network=network, prior=prior, own=self._predict(points),
            is_taken=np.array([point.tobytes() in self._asked for point in points]),
        )  # fmt: skip
        return self._pool

    def _resolve(self, number: int, point: Sequence[float]) -> Trial:
        u = dict(zip((draw.name for draw in self._draws), point, strict=True))
        return self._space.sample(number, lambda draw: u[draw.name])

    def _redraw(self, block: int, points: Floats) -> Floats:
        """Return the points, and copies of them in which the trials' numbers are drawn again, but no choices.

        To resolve a configuration takes longest. A copy need not be resolved, as it has the same choices, and
        these alone decide which draws a configuration has.
        """
        is_number = np.array([draw.choices is None and draw in self._space.trial_draws for draw in self._draws])
        copies = np.tile(points, (_COPIES - 1, 1))
        fresh = np.random.default_rng([self._space.search.seed % 2**63, block]).random(copies.shape)
        return np.concatenate([points, np.where(is_number & (copies >= 0), fresh, copies)])

    def _near_portfolio(self, at: int, pool: _Pool) -> int | None:
        """Return the row nearest to configuration `at` of the portfolio, in quantiles of the pool's columns."""
        portfolio = self._prior.portfolio_of(pool.network)
        if at >= len(portfolio):
            return None
        below, equal = pool.rows < portfolio[at], pool.rows == portfolio[at]
        quantiles = (below.sum(axis=0) + 0.5 * equal.sum(axis=0)) / len(pool.rows)
        distances = np.abs(to_quantiles(pool.rows) - quantiles).sum(axis=1)
        distances[pool.is_taken] = np.inf
        return int(np.argmin(distances))

    def _best(self, number: int, pool: _Pool) -> int | None:
        """Return the row of the lowest predicted cost, or None if neither model ranks better than chance."""
        trusts = (self._trust if pool.prior is not None else 0.0), self._own_trust
        if max(trusts) <= 0:
            return None
        rng = np.random.default_rng([self._space.search.seed % 2**63, number])
        cost = 1e-6 * rng.random(len(pool.points))  # breaks ties at random
        for trees, trust in zip((pool.prior, pool.own), trusts, strict=True):
            if trees is not None:
                cost += trust**2 * trees[rng.choice(_TREES, _SAMPLED_TREES, replace=False)].mean(axis=0)
        cost[pool.is_taken] = np.inf
        return int(np.argmin(cost))

    def _fit(self) -> None:
        """Fit the search's own model, and evaluate how well it and the prior rank the outcomes."""
        self._fitted = len(self._costs)
        points, costs = np.stack(self._outcome_points), np.array(self._costs)
        evaluated = len(self._rows)
        correlation = _correlate(self._forest.predict(np.stack(self._rows)), costs[:evaluated])
        self._trust = max(0.0, (_DOUBT * 0.5 + evaluated * correlation) / (_DOUBT + evaluated))  # see _DOUBT
        quantiles = to_quantiles(costs)
        if self._fitted > _MOST_FITTED:
            best = np.argsort(costs, kind="stable")[: _MOST_FITTED // 2]
            chosen = np.union1d(best, np.arange(self._fitted - _MOST_FITTED // 2, self._fitted))
            points, quantiles = points[chosen], quantiles[chosen]
        columns, seed = _to_columns(points, self._draws), self._space.search.seed + self._fitted
        self._own_forest = fit_forest(columns, quantiles, _TREES, seed, out_of_bag=True)
        correlation = _correlate(self._own_forest.oob_prediction_, quantiles)
        self._own_trust = max(0.0, len(columns) * correlation / (_DOUBT + len(columns)))
        if self._pool is not None:
            self._pool.own = self._predict(self._pool.points)

    def _predict(self, points: Floats) -> Floats | None:
        return None if self._own_forest is None else predict_each(self._own_forest, _to_columns(points, self._draws))


def _to_columns(points: Floats, draws: Sequence[Draw]) -> NDArray[np.float32]:
    """Return the coordinates, and for each choice of three or more options a column for each: 1 if taken."""
    columns = [points]
    for column, draw in enumerate(draws):
        if draw.choices is not None and draw.choices > 2:
            columns.append(np.floor(points[:, [column]] * draw.choices) == np.arange(draw.choices))
    return np.hstack(columns).astype(np.float32)


def _correlate(predicted: Floats, costs: Floats) -> float:
    """Return Spearman's rank correlation; 0 where one of the two is constant."""
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.corrcoef(to_quantiles(predicted), to_quantiles(costs))[0, 1]))
