"""A stopping policy: which running trials are not worth training further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from search.stopping import Monitor, Stopping
from search.watched_metric import Measure, direction, metric
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Report
from spaces.settings import Objective


class _Patience(Monitor):
    def __init__(self, measure: Measure, reports: int) -> None:
        self._measure = measure
        self._reports = reports
        self._waited: dict[int, tuple[float, int]] = {}
        """Trial -> its lowest cost, and the reports since then."""

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        for report in reports:
            best, waited = self._waited.get(report.number, (float("inf"), 0))
            cost = self._measure.cost(report)
            improved = cost is not None and cost < best
            self._waited[report.number] = (cost, 0) if improved and cost is not None else (best, waited + 1)
        return {report.number for report in reports if self._waited[report.number][1] >= self._reports}

    def forget(self, number: int) -> None:
        self._waited.pop(number, None)

    def state(self, number: int) -> Any:
        # What a checkpoint keeps, as JSON: a trial that resumes is as if it had never stopped.
        return list(self._waited[number]) if number in self._waited else None

    def restore(self, number: int, group: int, state: Any) -> None:
        self._waited[number] = (float(state[0]), int(state[1]))


@dataclass(frozen=True, kw_only=True)
class Example(Stopping):
    """Stops a trial that has not improved in its last `reports` validations."""

    EXAMPLES: ClassVar[Examples] = ({"reports": 2},)

    metric: str = metric()
    reports: int = size(3)
    direction: str = direction()

    def begin(self, objective: Objective) -> Monitor:
        return _Patience(Measure.of(self.metric, self.direction, objective), self.reports)
