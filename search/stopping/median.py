"""The median rule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from math import inf
from statistics import median
from typing import Any, final

import numpy as np

from search.stopping import Monitor, Stopping
from search.watched_metric import Measure, direction, metric
from spaces.plugins.fields import size
from spaces.records import Report, State
from spaces.settings import Objective

KEPT = 1000


@final
@dataclass(frozen=True, kw_only=True)
class Median(Stopping):
    """Stops a trial whose best is worse than the median of running averages at the same step.

    The running average of a trial is the mean of its costs up to a step. The median is taken of the
    newest 1,000 trials that reported at this step, the trial itself included.
    Source: Golovin et al., "Google Vizier", KDD 2017, section 3.2.2.
    """

    metric: str = metric()
    trials: int = size(5)
    """No trial is stopped at a step that fewer trials have reported at."""
    steps: int = size(1, steps=True)
    """No trial is stopped before this many of its own steps."""
    direction: str = direction()

    def begin(self, objective: Objective) -> Monitor:
        measure = Measure.of(self.metric, self.direction, objective)
        return MedianMonitor(measure, self.trials, self.steps)


@dataclass(slots=True)
class _Curve:
    best: float = inf
    total: float = 0.0
    count: int = 0


@final
class MedianMonitor(Monitor):
    """The median rule at work. It keeps 1,000 averages per step, and curves of running trials."""

    def __init__(self, measure: Measure, trials: int, steps: int) -> None:
        self._measure = measure
        self.compares = measure.name
        self._trials = trials
        self._steps = steps
        self._curves: defaultdict[int, _Curve] = defaultdict(_Curve)
        self._averages: defaultdict[int, dict[int, float]] = defaultdict(dict[int, float])
        """Step -> trial -> its average there, the newest last; a restarted trial counts once."""

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Return the reported trials that are worse than the median, compared together."""
        learned: list[tuple[int, int, float]] = []
        for report in reports:
            cost = self._measure.cost(report)
            if cost is None:
                continue
            curve = self._curves[report.number]
            curve.best = min(curve.best, cost)
            curve.total += cost
            curve.count += 1
            self._keep(report.number, report.step, curve.total / curve.count)
            learned.append((report.number, report.step, curve.best))
        costs = {step: self._averages[step].values() for _, step, _ in learned if step >= self._steps}
        medians = {step: median(values) for step, values in costs.items() if len(values) >= self._trials}
        return {number for number, step, best in learned if best > medians.get(step, inf)}

    def _keep(self, number: int, step: int, average: float) -> None:
        averages = self._averages[step]
        averages.pop(number, None)  # the newest is last
        averages[number] = average
        if len(averages) > max(KEPT, self._trials):
            del averages[next(iter(averages))]

    def recall_reports(self, reports: Sequence[Report], states: Mapping[int, State]) -> None:
        """Note the averages of all trials again; costs that the history dropped are interpolated.

        A trial is validated at equal distances, that of its first two reports, which are kept; its cost
        between two that are further apart is taken from the line through them.
        """
        for number, of_trial in groupby(reports, key=lambda report: report.number):
            measured = [(report.step, self._measure.cost(report)) for report in of_trial]
            known = [(step, cost) for step, cost in measured if cost is not None]
            steps, costs = [step for step, _ in known], [cost for _, cost in known]
            every = steps[1] - steps[0] if len(steps) > 1 else 1
            between = (range(before, after, every) for before, after in pairwise(steps))
            at = [*chain.from_iterable(between), *steps[-1:]]
            averages = np.cumsum(np.interp(at, steps, costs)) / np.arange(1, len(at) + 1) if at else np.empty(0)
            for step, average in zip(at, averages.tolist(), strict=True):
                self._keep(number, step, average)

    @property
    def averages(self) -> Mapping[int, Collection[float]]:
        """Step -> the averages of the trials that reported there."""
        return {step: averages.values() for step, averages in self._averages.items()}

    def forget(self, number: int) -> None:
        self._curves.pop(number, None)

    def state(self, number: int) -> Any:
        """Return the best cost so far, the sum of all costs, and their number."""
        kept = self._curves.get(number)
        return [kept.best, kept.total, kept.count] if kept else None

    def restore(self, number: int, group: int, state: Any) -> None:
        """Restore the summary of a trial's costs so far."""
        best, total, count = state
        self._curves[number] = _Curve(best, total, count)
