"""Reports for stopping policies."""

from __future__ import annotations

from spaces.records import Metric, Report
from spaces.settings import Objective

OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="raw")


def report(number: int, step: int, *values: float, state: str = "running") -> Report:
    """Return a report of tvd/raw and, with two values, tvd/bema."""
    metrics = tuple(Metric("tvd", variant, "", value) for variant, value in zip(("raw", "bema"), values, strict=False))
    return Report(number=number, step=step, metrics=metrics, state=state)
