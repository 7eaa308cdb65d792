"""Gaussian process search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from optuna.samplers import GPSampler

from search.samplers import Sampler, Strategy
from search.samplers._optuna import Limits, OptunaStrategy
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class GaussianProcess(Sampler):
    """Optuna's Gaussian process with expected improvement; for few and costly trials.

    An ask fits the process: it costs a good part of a second, so this is no sampler for packs of a thousand lanes. It
    sees 100 trials (the 50 told last, the 50 best before them) and at most 8 running ones. Conditional draws are
    random.
    Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning"; Ament et al., arXiv 2310.20708.
    """

    EXAMPLES: ClassVar[Examples] = ({"startup": 18},)

    startup: int = size(10)
    """Trials with an outcome before the first one that is not random."""

    @property
    def takes_two_objectives(self) -> bool:
        """Yes."""
        return True

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on what is remembered of the outcomes."""
        return OptunaStrategy(
            space,
            outcomes,
            sampler=lambda seed: GPSampler(seed=seed, n_startup_trials=self.startup, warn_independent_sampling=False),
            limits=Limits(newest=50, best=50, running=8),
        )
