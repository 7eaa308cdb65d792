"""The contract of stopping policies."""

from __future__ import annotations

import json
from collections.abc import Sequence

from graft.testing.common import Configuration, build
from search.stopping import Monitor
from spaces.records import Metric, Report
from spaces.settings import Objective

OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="raw")


def report(number: int, step: int, value: float, name: str = "tvd") -> Report:
    """Return a report of one metric."""
    return Report(number=number, step=step, metrics=(Metric(name, "raw", "", value),), state="running")


def _monitor(configuration: Configuration) -> Monitor:
    return build("stopping", configuration).begin(OBJECTIVE)


def _observe(monitor: Monitor, reports: Sequence[Report]) -> set[int]:
    return monitor.observe(reports, {report.number: 0 for report in reports})


def check_answers(configuration: Configuration) -> None:
    """Assert that it stops only trials that report now or have reported before."""
    monitor, known = _monitor(configuration), set[int]()
    for step in range(1, 12):
        reports = [report(number, 10 * step, 1.0 + number) for number in range(6)]
        known |= {record.number for record in reports}
        strange = _observe(monitor, reports) - known
        assert not strange, f"it stops trials {sorted(strange)}, which never reported"


def check_missing_metric(configuration: Configuration) -> None:
    """Assert that reports without its metric stop nothing."""
    reports = [report(number, 1, float(number), "another") for number in range(6)]
    stopped = _observe(_monitor(configuration), reports)
    assert not stopped, f"trials {sorted(stopped)} are stopped by reports that do not have the metric"


def check_not_finite(configuration: Configuration) -> None:
    """Assert that a metric that is NaN or infinite raises no error."""
    for value in (float("nan"), float("inf"), float("-inf")):
        _observe(_monitor(configuration), [report(0, 10, value), report(1, 10, 0.5)])


def check_checkpoints(configuration: Configuration) -> None:
    """Assert that a trial's state is JSON, from which it resumes as if it had never been away."""
    live, resumed = _monitor(configuration), _monitor(configuration)
    past = [report(0, 10 * step, 1.0) for step in (1, 2)]
    for monitor in (live, resumed):
        for record in past:
            _observe(monitor, [record])
    state = json.loads(json.dumps(resumed.state(0)))
    resumed.forget(0)
    if state is not None:
        resumed.restore(0, 0, state)
    for step in range(3, 12):
        record = report(0, 10 * step, 1.0)
        stopped = 0 in _observe(live, [record])
        again = 0 in _observe(resumed, [record])
        assert stopped == again, f"after a checkpoint the verdict at step {10 * step} differs"
        if stopped:
            return
