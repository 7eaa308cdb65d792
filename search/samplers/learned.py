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
from search.samplers._features import Floats, fit_forest, flatten, predict_mean, to_quantiles
from search.samplers._parts import evolve, find_parts
from search.samplers._points import RandomPoints
from search.samplers._prior import PACKAGED, LearnedPrior, read_prior
from search.samplers.random import RandomSearch
from spaces.plugins import Examples
from spaces.plugins.fields import file, knob, size
from spaces.plugins.files import FilePath
from spaces.records import TERMINAL, Draws, Outcome, Trial
from spaces.seeds import stream_word

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

_STREAM = int.from_bytes(b"learned", "little")
"""Separates this sampler's random numbers from those of `random` with the same seed."""
_POOL = 256
"""Random configurations in a pool, of whose parts the next trials are put together."""
_ASKS = 128
"""Trials for which one pool is used, while the prior ranks configurations."""
_LATER_ASKS = 768
"""Trials for which a later pool is used."""
_COPIES = 4
"""How often a later pool has each configuration: as drawn, and with its numbers drawn again."""
_ISLANDS = 8
"""How often a pool is evolved, each time with other trees; the next trials are taken from each in turn."""
_TREES = 40
"""Trees of a forest."""
_SAMPLED_TREES = 8
"""Trees of each forest, drawn at random for an island, whose mean ranks configurations."""
_PRIOR_UNTIL = 512
"""Ended trials after which the prior is ignored, and the search's own model alone ranks."""
_MOST_FITTED = 1000
"""Most trials that the search's own model is fitted to: half are the newest, half the best."""
_FEWEST = 8
"""Trials that have to end before the search's own model is fitted."""
_PRIOR_EVERY = 2
"""Until a model is fitted, the prior chooses every second trial, up to `Learned.most_unjudged`."""
_PORTFOLIO_EVERY = 3
"""Every third trial that the prior chooses then is the next one of the portfolio."""
_DOUBT = 8
"""Weight, in trials, of the rank correlation assumed at first: 1/2 for the prior, 0 for the own model."""


@final
@dataclass(frozen=True, kw_only=True)
class Learned(Sampler):
    """A sampler that learns where good trials lie, first from trials on other tasks, then from its own.

    Until eight trials have ended, every second one is chosen by the prior and the others are random. A third of
    the prior's are configurations of its portfolio, of which at least one is good on each of its tasks; the
    others are what its forest predicts to be best. There are three for each of the portfolio, so a wrong prior
    costs that many trials and no more. Later a share `floor` of the trials is random, and the others have
    the lowest predicted cost among configurations that are put together from random ones, part by part: a
    part is draws and columns that depend on one another (`_parts`).
    A few trees predict it, drawn at random, of two forests: the prior's, fitted to trials on other tasks, and
    the search's own, fitted to quantiles of its outcomes (as in Thompson sampling; Kandasamy et al., AISTATS
    2018; Salinas et al., ICML 2020). A forest counts by the square of its rank correlation with the outcomes,
    the own one by that of its out-of-bag predictions. At 0 or below it does not count; if neither does, all
    trials are random. After 512 trials the prior counts no more. Hundreds can be asked for at once, without
    waiting for outcomes.

    Needs scikit-learn: `pip install 'graft-search[learn]'`. Draws that a group shares are random.
    """

    EXAMPLES: ClassVar[Examples] = ({"portfolio": 2, "floor": 0.2},)

    prior: FilePath = file(optional=True)
    """A file that `search learn` wrote; else the packaged `learned_prior.npz` beside this module."""
    portfolio: int = size(4, low=0)
    """The most configurations of the portfolio that are tried until eight trials have ended; a prior has 16."""
    floor: float = knob(0.1, low=0, high=1)
    """The share of later trials that are random."""

    @property
    def most_unjudged(self) -> int:
        """The most trials that the prior chooses before eight have ended."""
        return self.portfolio * _PORTFOLIO_EVERY

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on a study; raises PluginError, one line, without scikit-learn or if the file is no prior."""
        if not space.draws:  # all trials are of one configuration
            return RandomSearch().begin(space, outcomes)
        return LearnedStrategy(space, outcomes, self)


@cache
def _fit_prior(path: str, digest: str) -> tuple[LearnedPrior, Any]:
    """Return a prior and the forest fitted to it; `digest` is for the cache alone, as a file may change."""
    prior = read_prior(Path(path))
    return prior, fit_forest(prior.rows, prior.quantiles, _TREES, 0)


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """Random configurations, of whose parts the trials of some numbers are put together."""

    key: tuple[int, int]
    """Its number, and the group whose draws its configurations share."""
    genes: Floats
    """Coordinates, -1 for a draw that a configuration does not have, then the columns of the prior while it ranks."""
    by_prior: bool
    """True if the prior ranks the pool."""
    model: str
    """The name of the configurations' model; empty if they have several."""


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
        """The configurations of the first _PRIOR_UNTIL trials that ended, each [columns of the prior]."""
        self._asked: set[bytes] = set()
        self._pool: _Pool | None = None
        self._islands: list[list[Floats]] = []
        """Coordinates of configurations evolved from the pool, each [draws], the best first."""
        self._own_forest: Any = None
        # Outcomes at the own model's last fit; rank correlations of the prior and of that model (_DOUBT).
        self._fitted, self._trust, self._own_trust = 0, 0.0, 0.0
        self._asked |= {self._to_point(outcome.draws).tobytes() for outcome in outcomes}
        self._parts = find_parts(
            self._draws, lambda points: self._to_genes(self._resolve_each(points)), np.random.default_rng(0)
        )
        self.tell(outcomes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended; one that diverged, failed or is not feasible counts as the worst."""
        for outcome in outcomes:
            if outcome.state not in TERMINAL:
                continue
            if self.counts_prior:
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
    def counts_prior(self) -> bool:
        """False once so many trials have ended that the search's own model ranks alone."""
        return len(self._rows) < _PRIOR_UNTIL

    @property
    def known_tasks(self) -> Sequence[str]:
        """The tasks that the prior was learnt from."""
        return self._prior.tasks

    def refit_and_rank_correlations(self) -> tuple[float, float] | None:
        """Fit the search's own model again; return the rank correlations of the prior and of it with the outcomes.

        They are 0 at least, and shrunk for few trials; their squares are the weights, but for the prior's once
        `counts_prior` is False. None while fewer than eight trials have ended.
        """
        if len(self._costs) < _FEWEST:
            return None
        self._fit()
        return self._trust, self._own_trust

    def _ask(self, number: int) -> Trial:
        """Return a trial as the models choose it, or, until one is fitted, the prior; else a random one."""
        point = None
        if self._own_forest is not None:
            word = stream_word(self._space.search.seed ^ _STREAM, number)
            trusts = (self._trust if self.counts_prior else 0.0), self._own_trust
            if word >= self._settings.floor * 2.0**64 and max(trusts) > 0:
                point = self._propose(number, *trusts)
        else:
            of_prior, is_random = divmod(number, _PRIOR_EVERY)
            of_portfolio, by_forest = divmod(of_prior, _PORTFOLIO_EVERY)
            if not is_random and of_prior < self._settings.most_unjudged:
                point = self._propose(number, 1.0, 0.0) if by_forest else self._rebuild(of_portfolio, number)
        if point is None:
            return self._random.ask(range(number, number + 1))[0]
        trial = self._resolve(number, point)
        self._asked.add(self._to_point(trial.draws).tobytes())
        return trial

    def _to_point(self, draws: Draws) -> Floats:
        return np.array([draws.get(draw.name, -1.0) for draw in self._draws])

    def _to_genes(self, trials: Sequence[Trial], *, by_prior: bool = True) -> Floats:
        """Return the trials' coordinates, and after them the prior's columns if it ranks them, [trials, genes]."""
        points = np.stack([self._to_point(trial.draws) for trial in trials])
        if not by_prior:
            return points
        rows = self._prior.encoder.encode([flatten(trial.config) for trial in trials])
        return np.hstack([points, rows.astype(np.float64)])

    def _draw_pool(self, number: int) -> _Pool:
        """Return the pool of the trial of this number, the current one or a new one, which has no islands yet."""
        by_prior = self.counts_prior
        group = number // self._space.search.group if self._space.search.group > 1 else 0
        key = number // (_ASKS if by_prior else _LATER_ASKS), group
        if self._pool is not None and (self._pool.key, self._pool.by_prior) == (key, by_prior):
            return self._pool
        # Points depend on the number and the group alone, so that a resumed search draws the same pool. A later
        # pool has the points of the last 128 of its numbers.
        pools = key[0] if by_prior else (key[0] + 1) * _LATER_ASKS // _ASKS
        points = self._points.rows((pools + group) * _POOL, _POOL)
        if self._space.search.group > 1:
            points[:, : len(self._space.group_draws)] = self._groups.rows(group, 1)
        trials = self._resolve_each(points)
        genes = self._to_genes(trials, by_prior=by_prior)
        models = {str(trial.config["model"]["name"]) for trial in trials}
        self._pool = _Pool(
            key=key,
            genes=genes if by_prior else self._redraw(key[0], genes),
            by_prior=by_prior,
            model=models.pop() if len(models) == 1 else "",
        )
        self._islands = []
        return self._pool

    def _resolve(self, number: int, point: Floats) -> Trial:
        # Parts put together may need a draw that neither had: it gets a random coordinate.
        if point.min() < 0:
            point = np.where(point < 0, self._points.rows(number, 1)[0], point)
        u = dict(zip((draw.name for draw in self._draws), point.tolist(), strict=True))
        return self._space.sample(number, lambda draw: u[draw.name])

    def _resolve_each(self, points: Floats) -> list[Trial]:
        return [self._resolve(0, point) for point in points]

    def _redraw(self, block: int, points: Floats) -> Floats:
        """Return the points, and copies in which the trials' numeric draws are drawn again, but no choices.

        To resolve a configuration takes longest. A copy need not be resolved, as it has the same choices, and
        these alone decide which draws a configuration has.
        """
        is_number = np.array([draw.choices is None and draw in self._space.trial_draws for draw in self._draws])
        copies = np.tile(points, (_COPIES - 1, 1))
        fresh = np.random.default_rng([self._space.search.seed % 2**63, block]).random(copies.shape)
        return np.concatenate([points, np.where(is_number & (copies >= 0), fresh, copies)])

    def _rebuild(self, at: int, number: int) -> Floats | None:
        """Return configuration `at` of the portfolio, put together from the pool; None past its end.

        Each part comes from the configuration of the pool whose columns are nearest there, as quantiles.
        """
        pool = self._draw_pool(number)
        portfolio = self._prior.portfolio_of(pool.model)
        if at >= len(portfolio):
            return None
        rows = pool.genes[:, len(self._draws) :]
        quantiles = ((rows < portfolio[at]) + 0.5 * (rows == portfolio[at])).mean(axis=0)
        distances = np.abs(to_quantiles(rows) - quantiles)
        members = self._parts[len(self._draws) :, None] == np.arange(self._parts.max() + 1)  # [columns, parts]
        nearest = (distances @ members).argmin(axis=0)
        parts = self._parts[: len(self._draws)]
        return pool.genes[nearest[parts], np.arange(len(parts))]

    def _propose(self, number: int, trust: float, own_trust: float) -> Floats | None:
        """Return a configuration of low predicted cost that was not asked yet; None if there is none.

        `trust`, `own_trust`: how much the prior's forest and the search's own count.
        """
        pool = self._draw_pool(number)
        for attempt in range(2):
            if attempt:
                rng = np.random.default_rng([self._space.search.seed % 2**63, number])
                self._islands = [list(self._evolve(pool, trust, own_trust, rng)) for _ in range(_ISLANDS)]
            while island := max(self._islands, key=len, default=[]):
                point = island.pop(0)
                if point.tobytes() not in self._asked:
                    return point
        return None

    def _evolve(self, pool: _Pool, trust: float, own_trust: float, rng: np.random.Generator) -> Floats:
        """Return coordinates of configurations to which a few trees, drawn at random, predict a low cost."""
        count = len(self._draws)
        prior, own_trees = (
            [forest.estimators_[at].tree_ for at in rng.choice(_TREES, _SAMPLED_TREES, replace=False)] if weight else []
            for forest, weight in ((self._forest, trust), (self._own_forest, own_trust))
        )

        def predict(genes: Floats) -> Floats:
            cost = np.zeros(len(genes))
            if prior:
                cost += trust**2 * predict_mean(prior, genes[:, count:].astype(np.float32))
            if own_trees:
                cost += own_trust**2 * predict_mean(own_trees, _to_columns(genes[:, :count], self._draws))
            return cost

        return evolve(pool.genes, self._parts[: pool.genes.shape[1]], predict, rng)[:, :count]

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
        self._islands = []


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
