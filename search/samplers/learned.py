"""A search that starts from what trials on other tasks have taught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from search.samplers import Sampler, Strategy
from search.samplers._features import Features, Floats, fit_forest, flatten, predict_each, to_quantiles
from search.samplers._points import RandomPoints
from search.samplers._prior import PACKAGED, LearnedPrior, read_prior
from search.samplers.random import RandomSearch
from search.samplers.warm import own_draws
from spaces.plugins import Examples
from spaces.plugins.fields import file, knob, size
from spaces.plugins.files import FilePath
from spaces.records import Outcome, Trial
from spaces.seeds import GAMMA, mix64

if TYPE_CHECKING:
    from spaces.space import Space

_STREAM = int.from_bytes(b"learned", "little")
_POOL = 768
"""Configurations drawn at random, of which the next trials are chosen."""
_ASKS = 128
"""Trials after which the pool is drawn again."""
_TREES = 40
_KNOWN = 1000
"""Trials of its own that a model is fitted to at most: the newest half and the best."""
_FEWEST = 8
"""Trials with an objective before the search's own model is fitted."""
_PRIOR_WORTH = 32.0
"""A prior that ranks the search's trials perfectly counts as much as so many of them."""


@final
@dataclass(frozen=True, kw_only=True)
class Learned(Sampler):
    """Learns where good trials lie from trials on other tasks first, and from its own as they come.

    The first trials are near a portfolio, settings of which one is good on each task that the prior knows. After them a
    share `floor` of the trials is random, so that a wrong prior cannot trap the search. Each other trial is the best of
    a pool of random configurations by one tree, drawn at random, of two forests: the prior's, over the trials of other
    tasks, and the search's own, over quantiles of what it was told (Thompson sampling; Kandasamy et al., AISTATS 2018;
    Salinas et al., ICML 2020). The prior's weight is its rank correlation with what was told, and falls with the number
    of trials; at 0 or below it has none. Hundreds can be asked for at once, without waiting.

    Needs scikit-learn: `pip install 'graft-search[learn]'`. Draws that a group shares are random.
    """

    EXAMPLES: ClassVar[Examples] = ({"portfolio": 4, "floor": 0.1},)

    prior: FilePath = file(optional=True)
    """A file of `search learn`; left out: the packaged one."""
    portfolio: int = size(16, low=0)
    """Trials of the first wave."""
    floor: float = knob(0.25, low=0, high=1)
    """Share of the later trials that are random."""

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start; raises PluginError, one line, without scikit-learn and for a file that is no prior."""
        return LearnedStrategy(space, outcomes, self)


@cache
def _fit_prior(path: str, digest: str) -> tuple[LearnedPrior, Any]:
    prior = read_prior(Path(path))
    return prior, fit_forest(prior.rows, prior.quantiles, _TREES, 0)


@final
class LearnedStrategy(Strategy):
    """A learned prior at work on one study.

    The pool follows from the number. The own model is fitted again when an eighth more has been told, so that a search
    that is resumed, which fits it at once, may ask other trials than it would have asked without the interruption.
    """

    def __init__(self, space: Space, outcomes: Sequence[Outcome], settings: Learned) -> None:
        path = settings.prior.path if settings.prior else str(PACKAGED)
        self._prior, self._forest = _fit_prior(path, settings.prior.digest if settings.prior else "")
        self._space = space
        self._settings = settings
        self._random = RandomSearch().begin(space, [])
        self._own = {draw.name: column for column, draw in enumerate(own_draws(space))}
        self._points = RandomPoints(space.search.seed ^ _STREAM, own_draws(space))
        self._sign = space.search.signs[0]
        self._rows: list[NDArray[np.float32]] = []
        self._costs: list[float] = []
        self._pool: tuple[tuple[int, int], list[Mapping[str, float]], NDArray[np.float32], Floats] | None = None
        self._taken: set[int] = set()
        self._asked: dict[int, NDArray[np.float32]] = {}
        """Number -> row of the trials that were chosen and have not ended."""
        self._model: Any = None
        self._fitted, self._trust = 0, 1.0
        self.tell(outcomes)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from trials that ended; one that diverged or failed counts as the worst."""
        ended = [one for one in outcomes if one.state in ("finished", "pruned", "diverged", "failed")]
        if not ended:
            return
        for one in ended:
            row = self._asked.pop(one.number, None)
            if row is None:
                row = self._prior.encoder.encode([flatten(self._space.resolve(one.number, one.draws).config)])[0]
            self._rows.append(row)
        self._costs += [
            np.inf if one.objective is None or not one.feasible else self._sign * one.objective for one in ended
        ]

    def ask(self, numbers: range) -> list[Trial]:
        """Return the trials of these numbers, in order."""
        if len(self._costs) >= max(_FEWEST, self._fitted + self._fitted // 8 + 1):
            self._fit()
        return [self._ask(number) for number in numbers]

    def _ask(self, number: int) -> Trial:
        [trial] = self._random.ask(range(number, number + 1))
        is_free = (
            mix64(mix64(self._space.search.seed ^ _STREAM) + (number + 1) * GAMMA) < self._settings.floor * 2.0**64
        )
        if number >= self._settings.portfolio and is_free:
            return trial
        draws, rows, prior = self._draw_pool(number, trial)
        chosen = self._near_portfolio(number, trial, rows) if number < self._settings.portfolio else None
        if chosen is None:
            chosen = self._best(number, rows, prior)
        self._taken.add(chosen)
        self._asked[number] = rows[chosen]
        u = {**trial.draws, **draws[chosen]}
        return self._space.sample(number, lambda draw: u[draw.name])

    def _draw_pool(self, number: int, trial: Trial) -> tuple[list[Mapping[str, float]], NDArray[np.float32], Floats]:
        """Return the pool that this number chooses from: coordinates, rows and each prior tree's cost of each row."""
        key = number // _ASKS, trial.group if self._space.search.group > 1 else 0
        if self._pool is None or self._pool[0] != key:
            points = self._points.rows((key[0] + key[1]) * _POOL, _POOL)
            draws: list[Mapping[str, float]] = []
            configs: list[Features] = []
            for point in points.tolist():
                own = {name: point[column] for name, column in self._own.items()}
                configs.append(flatten(self._space.sample(number, lambda draw: own.get(draw.name, trial.draws.get(draw.name, 0.5))).config))  # fmt: skip # noqa: B023, E501
                draws.append(own)
            rows = self._prior.encoder.encode(configs)
            self._pool = key, draws, rows, predict_each(self._forest, rows)
            self._taken = set()
        return self._pool[1:]

    def _near_portfolio(self, number: int, trial: Trial, rows: NDArray[np.float32]) -> int | None:
        """Return the row nearest to the portfolio's next setting, each column counted by ranks within the pool."""
        wanted = self._prior.portfolio_of(str(trial.config["model"]["name"]))
        if number >= len(wanted):
            return None
        both = np.vstack([wanted[number], rows])
        distances = np.abs(to_quantiles(both[1:]) - _rank(both)).sum(axis=1)
        distances[list(self._taken)] = np.inf
        return int(np.argmin(distances))

    def _best(self, number: int, rows: NDArray[np.float32], prior: Floats) -> int:
        rng = np.random.default_rng([self._space.search.seed % 2**63, number])
        score = self._weight * prior[rng.integers(len(prior))]
        if self._model is not None:
            own = self._model.estimators_[rng.integers(_TREES)].tree_.predict(rows)[:, 0]
            score = score + (1 - self._weight) * own
        score = score + 1e-6 * rng.random(len(rows))  # ties
        score[list(self._taken)] = np.inf
        return int(np.argmin(score))

    @property
    def _weight(self) -> float:
        if self._model is None:
            return 1.0
        worth = _PRIOR_WORTH * self._trust
        return worth / (worth + self._fitted)

    def _fit(self) -> None:
        """Fit the search's own model, and see how well the prior ranks what was told."""
        self._fitted = len(self._costs)
        rows, costs = np.stack(self._rows), np.array(self._costs)
        quantiles = to_quantiles(costs)
        predicted = self._forest.predict(rows)
        with np.errstate(invalid="ignore"):
            found = np.nan_to_num(np.corrcoef(to_quantiles(predicted), quantiles)[0, 1])
        # As if eight trials had been seen before, on which the prior ranked half right.
        self._trust = max(0.0, (8 * 0.5 + self._fitted * float(found)) / (8 + self._fitted))
        if self._fitted > _KNOWN:
            best = np.argsort(costs, kind="stable")[: _KNOWN // 2]
            kept = np.union1d(best, np.arange(self._fitted - _KNOWN // 2, self._fitted))
            rows, quantiles = rows[kept], quantiles[kept]
        self._model = fit_forest(rows, quantiles, _TREES, self._space.search.seed + self._fitted)


def _rank(both: NDArray[np.float32]) -> Floats:
    """Return the quantile of the first row among the others, for each column."""
    first, rest = both[0], both[1:]
    return ((rest < first).sum(axis=0) + 0.5 * (rest == first).sum(axis=0)) / len(rest)
