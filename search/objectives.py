"""The objective of a trial, from its reports, and whether they have it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import fmean
from typing import final

from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.records import Report
from spaces.settings import Objective


def objective_after(objective: Objective, before: float | None, report: Report) -> float | None:
    """A trial's objective after one more report.

    None while no value was finite; with `at: last` also when the newest value is not. A report without the metric
    changes nothing.
    """
    value = objective.value_in(report)
    if value is None:
        return before
    if not isfinite(value):
        return before if objective.at == "best" else None
    if objective.at == "last" or before is None or objective.is_better(value, before):
        return value
    return before


def rank_by_mean(objectives: Mapping[int, Sequence[float | None]], seeds: int, sign: float) -> dict[int, float]:
    """Configuration -> its mean objective over `seeds` seeds, the best first; ties by number.

    Left out are configurations of which a seed has none. `sign` is 1 where small is good, -1 where large is.
    """
    found = {number: mean_objective(values) for number, values in objectives.items() if len(values) == seeds}
    means = {number: mean for number, mean in found.items() if mean is not None}
    return dict(sorted(means.items(), key=lambda item: (sign * item[1], item[0])))


def mean_objective(objectives: Sequence[float | None]) -> float | None:
    """Of a configuration's seeds; None where one of them has none."""
    known = [objective for objective in objectives if objective is not None]
    return fmean(known) if known and len(known) == len(objectives) else None


@final
class ObjectiveCheck:
    """Checks that the first evaluation of a study, or of each task of it, has the objective."""

    def __init__(self) -> None:
        self._seen: set[Objective] = set()

    def check(self, reports: Iterable[tuple[Objective, Report]]) -> None:
        """Raise StudyError at the first report of an objective that does not have it.

        At the end of a trial if what is missing is an average: other trials of the space may have it.
        """
        for objective, report in reports:
            if objective in self._seen:
                continue
            found = [metric[:3] for metric in report.metrics]
            # An average may be missing because this trial keeps none; only its last report can tell.
            no_average = objective.variant not in ("raw", *(variant for _, variant, _ in found))
            early = no_average and report.state == "running"
            if objective.value_in(report) is not None:
                self._seen.add(objective)
            elif found and report.state != "diverged" and not early:
                raise StudyError(f"search.objective: {_no_such(objective, found)}")


def _no_such(objective: Objective, found: Sequence[tuple[str, str, str]]) -> str:
    names = ["/".join(part for part in parts if part) for parts in found]
    return no_such("metric that a validation reports", str(objective), names)
