"""The number of a report that a stopping policy looks at, and the direction that is better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from spaces.errors import PluginError
from spaces.plugins.fields import option
from spaces.plugins.rules import Rule
from spaces.records import Report
from spaces.settings import OBJECTIVE, Objective, sign_of


@dataclass(frozen=True, kw_only=True)
class MetricRule(Rule):
    """A metric's name."""

    def describe(self) -> str:
        """Return the rule in words."""
        return "a metric: `objective`, a name (`tvd`: any variant) or name/variant (`tvd/bema`)"

    def check(self, path: str, value: Any) -> Any:
        """Return the value; raises PluginError that names path, value and rule."""
        parts = value.split("/", 2) if isinstance(value, str) else [""]
        if not all(parts):
            raise PluginError(f"{path}: {value!r} must be {self.describe()}")
        return value


def metric() -> Any:
    """Return a field for the metric that a policy watches; by default the objective."""
    return field(default=OBJECTIVE, metadata={"rule": MetricRule(kind="option")})


def direction() -> Any:
    """Return a field for the better direction of the metric; by default that of the objective."""
    return option(OBJECTIVE, (OBJECTIVE, "minimize", "maximize"))


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric of reports as a cost: less is better."""

    name: str
    variant: str | None
    """None for any variant."""
    condition: str
    sign: float

    @classmethod
    def of(cls, metric: str, direction: str, objective: Objective) -> Measure:
        """Return the measure that the fields of a policy mean in a study with this objective."""
        sign = objective.sign if direction == OBJECTIVE else sign_of(direction)
        name, _, rest = (str(objective) if metric == OBJECTIVE else metric).partition("/")
        variant, _, condition = rest.partition("/")
        return cls(name=name, variant=variant or None, condition=condition, sign=sign)

    def costs(self, report: Report) -> Iterator[tuple[str, float]]:
        """Yield variant and cost of every matching metric that is finite."""
        for name, variant, condition, value in report.metrics:
            if (
                name == self.name
                and condition == self.condition
                and self.variant in (None, variant)
                and isfinite(value)
            ):
                yield variant, self.sign * value

    def cost(self, report: Report) -> float | None:
        """Return the lowest matching cost; None if the report has none."""
        return min((cost for _, cost in self.costs(report)), default=None)
