"""Tree-structured Parzen estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar, final

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler

from search.samplers._optuna import Limits, OptunaSampler
from spaces.plugins import Examples
from spaces.plugins.fields import size


@final
@dataclass(frozen=True, kw_only=True)
class TreeParzen(OptunaSampler):
    """Optuna's multivariate TPE: draws what is likely among good trials and unlikely among others.

    Draws that always come together are modelled together: those that every trial makes, and those
    of each option of a choice (`group` of Optuna). Running trials count as bad, so that lanes
    filled at once spread out. It sees 400 trials: the 200 told last and the 200 best before them.
    With two objectives good are those that the fewest dominate; trials that are not feasible are
    bad, the farther the worse.
    Source: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; Watanabe,
    arXiv 2304.11127; two objectives: Ozaki et al., GECCO 2020.
    """

    EXAMPLES: ClassVar[Examples] = ({"startup": 5},)

    startup: int = size(20)
    """Trials with an outcome before the first one that is not random."""
    candidates: int = size(24)
    """Points among which the most promising is chosen."""

    @property
    def limits(self) -> Limits:
        """The limits: the 200 trials told last, the 200 best, and 100 running ones."""
        return Limits(newest=200, best=200, running=100)

    def make(self, seed: int) -> TPESampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` is called so since 2021
            return TPESampler(
                seed=seed,
                n_startup_trials=self.startup,
                n_ei_candidates=self.candidates,
                multivariate=True,
                group=True,
            )
