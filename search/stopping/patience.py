"""Patience over a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from search.stopping import Monitor, Stopping
from search.watched_metric import Measure, direction, metric
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Report
from spaces.settings import Objective


@final
@dataclass(frozen=True, kw_only=True)
class Patience(Stopping):
    """Stops a whole group when none of its running trials has improved for `steps` of its steps.

    A trial improves when the metric gets better than that trial's own best in any variant; its
    first report counts as an improvement. Source: paper 003, section 5.4.
    """

    EXAMPLES: ClassVar[Examples] = ({"steps": 10},)

    metric: str = metric()
    steps: int = size(steps=True)
    direction: str = direction()

    def begin(self, objective: Objective) -> Monitor:
        return PatienceMonitor(Measure.of(self.metric, self.direction, objective), self.steps)


@dataclass(slots=True)
class _Member:
    group: int
    best: dict[str, float] = field(default_factory=dict[str, float])
    improved: int = 0
    waited: int = 0
    """Own steps since the last improvement."""


@final
class PatienceMonitor(Monitor):
    """Patience at work. It keeps the best of each variant per running trial, and its step."""

    def __init__(self, measure: Measure, steps: int) -> None:
        self._measure = measure
        self._steps = steps
        self._members: dict[int, _Member] = {}
        self._groups: defaultdict[int, set[int]] = defaultdict(set)

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Return the known trials of every group of these reports without an improving trial."""
        for report in reports:
            group = groups[report.number]
            member = self._members.setdefault(report.number, _Member(group))
            self._groups[group].add(report.number)
            for variant, cost in self._measure.costs(report):
                if variant not in member.best or cost < member.best[variant]:
                    member.best[variant] = cost
                    member.improved = report.step
            member.waited = report.step - member.improved
            if report.state != "running":
                self.forget(report.number)
        stopped: set[int] = set()
        for group in {groups[report.number] for report in reports}:
            members = self._groups.get(group, set())
            if all(self._members[number].waited >= self._steps for number in members):
                stopped |= members
        return stopped

    def forget(self, number: int) -> None:
        """Drop a trial that does not run any more: its group continues without it."""
        member = self._members.pop(number, None)
        if member is None:
            return
        self._groups[member.group].discard(number)
        if not self._groups[member.group]:
            del self._groups[member.group]

    def state(self, number: int) -> Any:
        """Return the best of each variant, when it was last beaten, and how long ago."""
        kept = self._members.get(number)
        return [kept.best, kept.improved, kept.waited] if kept else None

    def restore(self, number: int, group: int, state: Any) -> None:
        """Restore a trial's best cost so far, and for how many steps it has not improved."""
        best, improved, waited = state
        self._members[number] = _Member(group, dict(best), improved, waited)
        self._groups[group].add(number)
