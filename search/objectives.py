"""The objective and the constraints of a trial, from its reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import final

from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.records import Constraints, Report, Trial, is_feasible
from spaces.settings import MetricName, Objective, Search


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """The objectives of a trial so far, and its constraints, of one validation."""

    objective: float | None = None
    second_objective: float | None = None
    """None also if it is not finite, or the trial lacks one of its paths."""
    constraints: Constraints | None = None
    """Excess of each constraint of the trial; None without constraints or objective."""

    @property
    def feasible(self) -> bool:
        """True if no constraint is known to be broken."""
        return is_feasible(self.constraints)


NO_RATING = Rating()
"""The rating of a trial without a validation that counts."""


def rating_after(search: Search, before: Rating, trial: Trial, report: Report) -> Rating:
    """Return a trial's rating after one more report."""
    if not _gives_objective(search.objective, before.objective, report):
        return before
    first = finite(search.objective.value_in(report))
    if first is None:
        return NO_RATING
    second = search.second.quantity.value_of(trial, report) if search.second else None
    constraints = None
    if search.feasible:
        excesses = {quantity.text: quantity.value_of(trial, report) for quantity in search.feasible}
        constraints = {text: finite(excess) for text, excess in excesses.items() if excess is not None}
    return Rating(objective=first, second_objective=finite(second), constraints=constraints)


def objective_after(objective: Objective, before: float | None, report: Report) -> float | None:
    """Return a trial's objective after one more report.

    None while no value was finite; with `at: last` also if the newest one is not. A report without
    the metric changes nothing.
    """
    if not _gives_objective(objective, before, report):
        return before
    return finite(objective.value_in(report))


def _gives_objective(objective: Objective, before: float | None, report: Report) -> bool:
    """Return True if the trial's objective is now that of this report."""
    value = objective.value_in(report)
    if value is None or objective.at == "last":
        return value is not None
    return isfinite(value) and (before is None or objective.is_better(value, before))


def finite(value: float | None) -> float | None:
    """Return the number, or None if it is not finite."""
    return value if value is not None and isfinite(value) else None


def rank_by_mean(objectives: Mapping[int, Sequence[float | None]], seeds: int, sign: float) -> dict[int, float]:
    """Return each configuration's mean objective, the best first; ties by number.

    A configuration counts if each of `seeds` seeds has one. `sign` 1: small is good; -1: large is.
    """
    means = {
        number: mean
        for number, values in objectives.items()
        if len(values) == seeds and (mean := mean_objective(values)) is not None
    }
    return dict(sorted(means.items(), key=lambda item: (sign * item[1], item[0])))


def mean_objective(objectives: Sequence[float | None]) -> float | None:
    """Return a configuration's mean objective over its seeds; None if a seed has none."""
    known = [objective for objective in objectives if objective is not None]
    return fmean(known) if known and len(known) == len(objectives) else None


@final
class ObjectiveCheck:
    """A check that the first evaluation of each task has the metrics that the search needs."""

    def __init__(self) -> None:
        self._seen: set[MetricName] = set()

    def check(self, reports: Iterable[tuple[Search, Report]]) -> None:
        """Raise StudyError for a missing metric; a missing average counts only at a trial's end."""
        for search, report in reports:
            for path, wanted in list_metrics(search):
                if wanted in self._seen:
                    continue
                metrics = [metric[:3] for metric in report.metrics]
                # This trial may keep no average; only its last report can tell.
                no_average = wanted.variant not in ("raw", *(variant for _, variant, _ in metrics))
                early = no_average and report.state == "running"
                if wanted in metrics:
                    self._seen.add(wanted)
                elif metrics and report.state != "diverged" and not early:
                    raise StudyError(f"{path}: {no_such_metric(wanted, metrics)}")


def list_metrics(search: Search) -> Iterator[tuple[str, MetricName]]:
    """Yield each metric that a search looks at, with the path of the space that names it."""
    objective = search.objective
    yield "search.objective", objective.metric_name
    for metric in search.second.quantity.metrics.values() if search.second else ():
        yield "search.objective", metric
    for constraint in search.feasible:
        yield from (("search.feasible", metric) for metric in constraint.metrics.values())


def no_such_metric(wanted: MetricName, metrics: Iterable[tuple[str, str, str]]) -> str:
    """Return the error message for a metric that a report lacks."""
    return no_such("metric that a validation reports", str(wanted), [str(MetricName(*metric)) for metric in metrics])
