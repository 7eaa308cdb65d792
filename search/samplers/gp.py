"""Gaussian process search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from optuna.samplers import GPSampler

from search.samplers._optuna import Limits, OptunaSampler
from spaces.plugins import Examples
from spaces.plugins.fields import size


@final
@dataclass(frozen=True, kw_only=True)
class GaussianProcess(OptunaSampler):
    """Optuna's Gaussian process with expected improvement; for few and costly trials.

    An ask fits the process, which takes a good part of a second: this is no sampler for packs of a
    thousand lanes. It sees 100 trials (the 50 told last, the 50 best before them) and at most 8
    running ones. Conditional draws are random.
    Source: Rasmussen, Williams, "Gaussian Processes for Machine Learning"; Ament et al., arXiv
    2310.20708.
    """

    EXAMPLES: ClassVar[Examples] = ({"startup": 18},)

    startup: int = size(10)
    """Trials with an outcome before the first one that is not random."""

    @property
    def limits(self) -> Limits:
        """The limits: the 50 trials told last, the 50 best, and 8 running ones."""
        return Limits(newest=50, best=50, running=8)

    def make(self, seed: int) -> GPSampler:
        return GPSampler(seed=seed, n_startup_trials=self.startup, warn_independent_sampling=False)
