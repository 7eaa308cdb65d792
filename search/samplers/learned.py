"""A search that starts from what trials on other tasks have taught."""

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
from spaces.seeds import GAMMA, mix64

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

_STREAM = int.from_bytes(b"learned", "little")
_POOL = 768
"""Configurations drawn at random, of which the next trials are chosen."""
_ASKS = 128
"""Trials after which the pool is drawn again, while the prior counts."""
_LATER = 384
"""Configurations drawn for a later pool, which serves _POOL trials."""
_REDRAWN = 8
"""Times that each of these is in the pool, with other numbers."""
_TREES = 40
_SAMPLED = 8
"""Trees of a forest, drawn at random, whose mean a trial is chosen by."""
_JUDGED = 512
"""Trials on which the prior is judged; later ones are the search's own model's alone."""
_KNOWN = 1000
"""Trials of its own that a model is fitted to at most: the newest half and the best."""
_FEWEST = 8
"""Trials with an objective before the search's own model is fitted."""
_EVERY = 4
"""Before a model is fitted, one trial of so many is near the portfolio, until that is spent."""
_DOUBT = 8
"""Trials, as if seen before, that shrink what is seen of a model's rank correlation."""


@final
@dataclass(frozen=True, kw_only=True)
class Learned(Sampler):
    """Learns where good trials lie from trials on other tasks first, and from its own as they come.

    Until eight trials have ended, every fourth one is near a portfolio, settings of which one is good on each task that
    the prior knows, until the portfolio is spent; the others are random. So a wrong prior costs the trials of its
    portfolio. Later a share `floor` of the trials is random. Each other trial is the best of a pool of random
    configurations by a few trees, drawn at random, of two forests: the prior's, over the trials of other tasks, and the
    search's own, over quantiles of what it was told (as in Thompson sampling; Kandasamy et al., AISTATS 2018; Salinas
    et al., ICML 2020). A forest's weight is the square of its rank correlation with what was told, the own one's out of
    bag; at 0 or below it has none, and where neither has any, all trials are random. Hundreds can be asked for at once,
    without waiting.

    Needs scikit-learn: `pip install 'graft-search[learn]'`. Draws that a group shares are random.
    """

    EXAMPLES: ClassVar[Examples] = ({"portfolio": 4, "floor": 0.1},)

    prior: FilePath = file(optional=True)
    """A file of `search learn`; left out: the packaged one."""
    portfolio: int = size(8, low=0)
    """Trials that are near the portfolio."""
    floor: float = knob(0.25, low=0, high=1)
    """Share of the later trials that are random."""

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start; raises PluginError, one line, without scikit-learn and for a file that is no prior."""
        return LearnedStrategy(space, outcomes, self)


@cache
def _fit_prior(path: str, digest: str) -> tuple[LearnedPrior, Any]:
    prior = read_prior(Path(path))
    return prior, fit_forest(prior.rows, prior.quantiles, _TREES, 0)


@dataclass(kw_only=True)
class _Pool:
    key: tuple[int, int]
    points: Floats
    """Coordinates, [configurations, draws]; -1 for a draw that a configuration does not have."""
    rows: NDArray[np.float32]
    """The configurations as the prior sees them; later pools, which the prior does not rank, have none."""
    model: str
    """The configurations' model; empty where they differ in it."""
    prior: Floats | None
    """Predictions of each tree of the prior, [trees, configurations]."""
    own: Floats | None
    """Predictions of each tree of the search's own model; None until it is fitted."""
    is_taken: NDArray[np.bool_]


@final
class LearnedStrategy(Strategy):
    """A learned prior at work on one study.

    The pool follows from the number. The own model is fitted again when a quarter more has been told, so that a search
    that is resumed, which fits it at once, may ask other trials than it would have asked without the interruption. It
    asks none again.
    """

    def __init__(self, space: Space, outcomes: Sequence[Outcome], settings: Learned) -> None:
        path = settings.prior.path if settings.prior else str(PACKAGED)
        self._prior, self._forest = _fit_prior(path, settings.prior.digest if settings.prior else "")
        self._space = space
        self._settings = settings
        self._random = RandomSearch().begin(space, [])
        self._draws = (*space.group_draws, *space.trial_draws)
        self._points = RandomPoints(space.search.seed ^ _STREAM, self._draws)
        self._groups = RandomPoints(space.search.seed, space.group_draws)
        self._sign = space.search.signs[0]
        self._known: list[Floats] = []
        """The points of the trials that ended."""
        self._costs: list[float] = []
        self._rows: list[NDArray[np.float32]] = []
        """The first of them as the prior sees them."""
        self._asked: set[bytes] = set()
        self._pool: _Pool | None = None
        self._model: Any = None
        self._fitted, self._trust, self._own_trust = 0, 0.0, 0.0
        self._asked |= {self._to_point(one.draws).tobytes() for one in outcomes}
        self.tell(outcomes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended; one that diverged or failed counts as the worst."""
        for one in outcomes:
            if one.state not in ("finished", "pruned", "diverged", "failed"):
                continue
            if len(self._rows) < _JUDGED:
                config = self._space.resolve(one.number, one.draws).config
                self._rows.append(self._prior.encoder.encode([flatten(config)])[0])
            self._known.append(self._to_point(one.draws))
            self._costs.append(np.inf if one.objective is None or not one.feasible else self._sign * one.objective)

    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers, in order."""
        if len(self._costs) >= max(_FEWEST, self._fitted + self._fitted // 4 + 1):
            self._fit()
        return [self._ask(number) for number in numbers]

    @property
    def known_tasks(self) -> Sequence[str]:
        """The tasks that the prior was learnt from."""
        return self._prior.tasks

    def judge(self) -> tuple[float, float] | None:
        """Return how well the prior, and the search's own model, rank what has ended: the correlations of ranks.

        They are 0 at least, and shrunk for few trials; their squares are the weights. None before the first fit.
        """
        if len(self._costs) < _FEWEST:
            return None
        self._fit()
        return self._trust, self._own_trust

    def _ask(self, number: int) -> Trial:
        pool, row = None, None
        if self._model is not None:
            word = mix64(mix64(self._space.search.seed ^ _STREAM) + (number + 1) * GAMMA)
            if word >= self._settings.floor * 2.0**64:
                pool = self._draw_pool(number)
                row = self._best(number, pool)
        elif number % _EVERY == 0 and number // _EVERY < self._settings.portfolio:
            pool = self._draw_pool(number)
            row = self._near_portfolio(number // _EVERY, pool)
        if pool is None or row is None:
            return self._random.ask(range(number, number + 1))[0]
        pool.is_taken[row] = True
        point = pool.points[row]
        self._asked.add(point.tobytes())
        u = dict(zip((draw.name for draw in self._draws), point.tolist(), strict=True))
        return self._space.sample(number, lambda draw: u[draw.name])

    def _to_point(self, draws: Draws) -> Floats:
        return np.array([draws.get(draw.name, -1.0) for draw in self._draws])

    def _draw_pool(self, number: int) -> _Pool:
        """Return the pool that this number chooses from."""
        is_judged = len(self._rows) < _JUDGED
        group = number // self._space.search.group if self._space.search.group > 1 else 0
        key = number // (_ASKS if is_judged else _POOL), group
        if self._pool is not None and self._pool.key == key:
            return self._pool
        points = self._points.rows((number // _ASKS + group) * _POOL, _POOL if is_judged else _LATER)
        if self._space.search.group > 1:
            points[:, : len(self._space.group_draws)] = self._groups.rows(group, 1)
        trials = [self._resolve(number, point) for point in points.tolist()]
        points = np.stack([self._to_point(trial.draws) for trial in trials])
        rows, model, prior = np.empty((0, 0), np.float32), "", None
        if is_judged:
            configs = [flatten(trial.config) for trial in trials]
            rows = self._prior.encoder.encode(configs)
            models = {str(config["model"]) for config in configs}
            model = models.pop() if len(models) == 1 else ""
            prior = predict_each(self._forest, rows)
        else:
            points = self._redraw(key[0], points)
        self._pool = _Pool(
            key=key, points=points, rows=rows, model=model, prior=prior, own=self._predict(points),
            is_taken=np.array([point.tobytes() in self._asked for point in points]),
        )  # fmt: skip
        return self._pool

    def _resolve(self, number: int, point: Sequence[float]) -> Trial:
        u = dict(zip((draw.name for draw in self._draws), point, strict=True))
        return self._space.sample(number, lambda draw: u[draw.name])

    def _redraw(self, block: int, points: Floats) -> Floats:
        """Return the points with others of the same choices, which have the same draws; only numbers are drawn again.

        Resolving a configuration takes longest, and which draws it has follows from its choices alone.
        """
        own = np.array([draw.choices is None and draw in self._space.trial_draws for draw in self._draws])
        again = np.tile(points, (_REDRAWN - 1, 1))
        fresh = np.random.default_rng([self._space.search.seed % 2**63, block]).random(again.shape)
        return np.concatenate([points, np.where(own & (again >= 0), fresh, again)])

    def _near_portfolio(self, at: int, pool: _Pool) -> int | None:
        """Return the row nearest to one of the portfolio's settings, each column counted by ranks within the pool."""
        wanted = self._prior.portfolio_of(pool.model)
        if at >= len(wanted):
            return None
        distances = np.abs(to_quantiles(pool.rows) - _rank(wanted[at], pool.rows)).sum(axis=1)
        distances[pool.is_taken] = np.inf
        return int(np.argmin(distances))

    def _best(self, number: int, pool: _Pool) -> int | None:
        """Return the best row by a tree of each model, or None where neither model ranks better than chance."""
        trust = (self._trust if pool.prior is not None else 0.0), self._own_trust
        if max(trust) <= 0:
            return None
        rng = np.random.default_rng([self._space.search.seed % 2**63, number])
        score = 1e-6 * rng.random(len(pool.points))  # ties
        for trees, worth in zip((pool.prior, pool.own), trust, strict=True):
            if trees is not None:
                score += worth**2 * trees[rng.choice(_TREES, _SAMPLED, replace=False)].mean(axis=0)
        score[pool.is_taken] = np.inf
        return int(np.argmin(score))

    def _fit(self) -> None:
        """Fit the search's own model, and see how well the prior ranks what was told."""
        self._fitted = len(self._costs)
        points, costs = np.stack(self._known), np.array(self._costs)
        judged = len(self._rows)
        found = _correlate(self._forest.predict(np.stack(self._rows)), costs[:judged])
        self._trust = max(0.0, (_DOUBT * 0.5 + judged * found) / (_DOUBT + judged))  # a priori it ranks half right
        quantiles = to_quantiles(costs)
        if self._fitted > _KNOWN:
            best = np.argsort(costs, kind="stable")[: _KNOWN // 2]
            kept = np.union1d(best, np.arange(self._fitted - _KNOWN // 2, self._fitted))
            points, quantiles = points[kept], quantiles[kept]
        columns, seed = _to_columns(points, self._draws), self._space.search.seed + self._fitted
        self._model = fit_forest(columns, quantiles, _TREES, seed, out_of_bag=True)
        found = _correlate(self._model.oob_prediction_, quantiles)
        self._own_trust = max(0.0, len(columns) * found / (_DOUBT + len(columns)))
        if self._pool is not None:
            self._pool.own = self._predict(self._pool.points)

    def _predict(self, points: Floats) -> Floats | None:
        return None if self._model is None else predict_each(self._model, _to_columns(points, self._draws))


def _to_columns(points: Floats, draws: Sequence[Draw]) -> NDArray[np.float32]:
    """Return the coordinates, and a column for each option of a choice among three and more, 1 where it is taken."""
    columns = [points]
    for column, draw in enumerate(draws):
        if draw.choices is not None and draw.choices > 2:
            columns.append(np.floor(points[:, [column]] * draw.choices) == np.arange(draw.choices))
    return np.hstack(columns).astype(np.float32)


def _correlate(predicted: Floats, costs: Floats) -> float:
    """Return Spearman's rank correlation; 0 where one of the two is constant."""
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.corrcoef(to_quantiles(predicted), to_quantiles(costs))[0, 1]))


def _rank(row: NDArray[np.float32], rows: NDArray[np.float32]) -> Floats:
    """Return the quantile of a row among the others, for each column."""
    return ((rows < row).sum(axis=0) + 0.5 * (rows == row).sum(axis=0)) / len(rows)
