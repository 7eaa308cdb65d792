"""The objective of a trial, from its reports."""

from __future__ import annotations

from math import isfinite

from spaces.records import Report
from spaces.settings import Objective


def better(objective: Objective, one: float, other: float) -> bool:
    """Whether `one` is better than `other` in the user's direction."""
    return one < other if objective.direction == "minimize" else one > other


def objective_after(objective: Objective, before: float | None, report: Report) -> float | None:
    """A trial's objective after one more report.

    None while no value was finite; with `at: last` also when the newest value is not. A report without the metric
    changes nothing.
    """
    wanted = (objective.metric, objective.variant, objective.condition)
    value = next((metric.value for metric in report.metrics if metric[:3] == wanted), None)
    if value is None:
        return before
    if not isfinite(value):
        return before if objective.at == "best" else None
    if objective.at == "last" or before is None or better(objective, value, before):
        return value
    return before
