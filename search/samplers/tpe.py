"""Tree-structured Parzen estimator."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler

from search.samplers import Sampler, Strategy
from search.samplers._optuna import Limits, OptunaStrategy
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class TreeParzen(Sampler):
    """Optuna's multivariate TPE: draws what is likely among good trials and unlikely among the others.

    Draws that always come together are modelled together: those that every trial makes, and those of each option that
    a choice may take (`group` of Optuna). Running trials count as bad, so that lanes filled at once spread out. It
    sees 400 trials: the 200 told last and the 200 best before them. With two objectives good are those that the fewest
    dominate; trials that are not feasible are bad, the farther the worse.
    Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; Watanabe, arXiv 2304.11127;
    two objectives: Ozaki et al., GECCO 2020.
    """

    EXAMPLES: ClassVar[Examples] = ({"startup": 5},)

    startup: int = size(20)
    """Trials with an outcome before the first one that is not random."""
    candidates: int = size(24)
    """Points among which the most promising is chosen."""

    @property
    def takes_two_objectives(self) -> bool:
        """Yes."""
        return True

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on what is remembered of the outcomes."""
        return OptunaStrategy(
            space,
            outcomes,
            sampler=self._make,
            limits=Limits(newest=200, best=200, running=100),
        )

    def _make(self, seed: int) -> TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` is called so since 2021
            return TPESampler(
                seed=seed,
                n_startup_trials=self.startup,
                n_ei_candidates=self.candidates,
                multivariate=True,
                group=True,
            )
