"""Asynchronous successive halving."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, final

from search.stopping import Monitor, Stopping
from search.watched_metric import Measure, direction, metric
from spaces.plugins.fields import knob, size
from spaces.records import Report, State
from spaces.settings import Objective


@final
@dataclass(frozen=True, kw_only=True)
class SuccessiveHalving(Stopping):
    """At steps r, r eta, r eta^2, ... only trials in the best 1/eta of the results there continue.

    A trial's result at a rung is its best cost up to its first report at or after the rung's step.
    It survives if fewer than max(1, floor(m / eta)) of the m results there, its own included, are
    better. No trial waits for another.
    Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020 (stopping
    variant).
    """

    metric: str = metric()
    min_steps: int = size(1, steps=True)
    """The first rung r, in steps of the trial."""
    eta: float = knob(3.0, low=1, open_low=True)
    """The reduction factor."""
    direction: str = direction()

    def begin(self, objective: Objective) -> Monitor:
        measure = Measure.of(self.metric, self.direction, objective)
        return HalvingMonitor(measure, self.min_steps, self.eta)


@dataclass(slots=True)
class _Curve:
    best: float = inf
    rung: int = 0
    """The next rung to be compared at."""


@final
class HalvingMonitor(Monitor):
    """Successive halving at work. It keeps a cost per trial and rung, and running trials' best."""

    def __init__(self, measure: Measure, min_steps: int, eta: float) -> None:
        self._measure = measure
        self.compares = measure.name
        self._min_steps = min_steps
        self._eta = eta
        self._rungs: defaultdict[int, list[float]] = defaultdict(list)
        self._entered: defaultdict[int, set[int]] = defaultdict(set)
        self._curves: dict[int, _Curve] = {}

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Return the reported trials that fall behind at a rung."""
        return {report.number for report in reports if self._climb(report, judge=True)}

    def _climb(self, report: Report, *, judge: bool) -> bool:
        """Enter the rungs that a report reaches; `judge`: up to one at which the trial falls behind.

        Returns True if it does.
        """
        cost = self._measure.cost(report)
        if cost is None:
            return False
        curve = self._curves.setdefault(report.number, _Curve())
        curve.best = min(curve.best, cost)
        while report.step >= self._min_steps * self._eta**curve.rung:
            rung, entered = self._rungs[curve.rung], self._entered[curve.rung]
            # A requeued trial reaches the rung a second time, and counts once.
            if report.number not in entered:
                insort(rung, curve.best)
                entered.add(report.number)
            if judge and bisect_left(rung, curve.best) >= max(1, int(len(rung) / self._eta)):
                return True
            curve.rung += 1
        return False

    def recall_reports(self, reports: Sequence[Report], states: Mapping[int, State]) -> None:
        """Enter the results of all trials at the rungs that they reached.

        The order in which they came is not stored, so that nobody is judged again: a trial that went
        on after a report had passed its rungs. Only the last report of a stopped trial is judged,
        beside all that are known now, for the rung at which it was stopped.
        """
        last = {report.number: report for report in reports if states.get(report.number) == "pruned"}
        for report in reports:
            if report is not last.get(report.number):
                self._climb(report, judge=False)
        for report in last.values():
            self._climb(report, judge=True)
        for number in {report.number for report in reports}:
            self.forget(number)

    @property
    def results(self) -> Mapping[int, Sequence[float]]:
        """Rung -> the costs of all trials that reached it, the best first."""
        return self._rungs

    def forget(self, number: int) -> None:
        self._curves.pop(number, None)

    def state(self, number: int) -> Any:
        """Return the best so far, None before the first one, and the next rung."""
        kept = self._curves.get(number)
        return [kept.best if isfinite(kept.best) else None, kept.rung] if kept else None

    def restore(self, number: int, group: int, state: Any) -> None:
        """Restore a trial's best cost so far and its next rung."""
        best, rung = state
        self._curves[number] = _Curve(inf if best is None else best, rung)
