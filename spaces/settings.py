"""The two sections of a space that are no plug-ins: how a trial trains, and how the search runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Any, Literal, NamedTuple, Self

from spaces.bounds import MOST_TRIALS
from spaces.plugins.fields import flag, knob, option, size, step_count
from spaces.records import Report, Trial

Direction = Literal["minimize", "maximize"]
History = Literal["full", "thin", "last"]
"""The validations of a trial that are kept: all, fewer with time (and the best), or the last."""

OBJECTIVE = "objective"
"""The objective's metric, or its direction, in a stopping policy that could name another."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The length of a trial's training, its batches, and how often it is evaluated."""

    steps: int = step_count(low=1)
    """Optimizer steps; a knob, since lanes of one pack may train for different lengths."""
    batch: int = size(128)
    """Sequences per optimizer step."""
    accumulate: int = size(1)
    """Equal parts of the batch whose gradients are taken one after the other and added: a step
    needs the memory of one part, and has the same result to rounding. The traced and generated
    steps do so; the native step takes the whole batch at once."""
    validate_every: int = size(1000, steps=True)
    """Steps between validations; the last step is always validated."""
    validation_batch: int = size(1024)
    """Sequences per validation."""
    dtype: str = option("float32", ("float32", "float64"))
    autocast: str = option("none", ("none", "bfloat16"))
    """The precision of the traced step's products, as in torch.autocast; parameters, the optimizer,
    loss and validation keep `dtype`. Of use on devices that have units for it."""
    diagnostics: bool = flag(False)
    """True if validation also reports on attention (`search list diagnostics`)."""
    pad_shapes: bool = flag(False)
    """True if trials of different sizes share packs, exactly: their tensors are padded with zeros
    to sizes of a coarse grid. If a space leaves it out, `spaces.reading.padding` decides."""


def sign_of(direction: str) -> float:
    """Return the factor that makes a value a cost, to be small: 1 to minimize, -1 to maximize."""
    return 1.0 if direction == "minimize" else -1.0


class MetricName(NamedTuple):
    """The name of one number of a report."""

    name: str
    variant: str
    condition: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the metric of `tvd/bema`, `accuracy/raw/length=64`; ValueError for no variant."""
        name, variant, *condition = text.split("/", 2)
        return cls(name, variant, *condition)

    def __str__(self) -> str:
        return "/".join(filter(None, self))

    def value_in(self, report: Report) -> float | None:
        """Return the value that a report has of it, finite or not; None if the report lacks it."""
        return next((metric.value for metric in report.metrics if metric[:3] == self), None)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The number the search optimises: a metric and variant, written `tvd/bema` in a space."""

    direction: Direction
    metric: str
    variant: str
    condition: str = ""
    at: Literal["best", "last"] = "best"
    """`best`: the trial's best validation counts (as paper 003 reports); `last`: its final one."""

    def __str__(self) -> str:
        return str(self.metric_name)

    @property
    def metric_name(self) -> MetricName:
        """The metric with its variant and its condition."""
        return MetricName(self.metric, self.variant, self.condition)

    @property
    def sign(self) -> float:
        """The factor that makes a value a cost: less is better."""
        return sign_of(self.direction)

    def value_in(self, report: Report) -> float | None:
        """Return the value that a report has of it, finite or not; None if the report lacks it."""
        return self.metric_name.value_in(report)

    def cost_in(self, report: Report) -> float:
        """Return a report's value as a cost, less is better; infinite without a finite value."""
        value = self.value_in(report)
        return inf if value is None or not isfinite(value) else self.sign * value

    def is_better(self, value: float, other: float) -> bool:
        """Return True if `value` is better than `other` in the user's direction."""
        return self.sign * value < self.sign * other


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number that follows from a trial's values and the metrics of one of its validations."""

    text: str
    """The text in the space."""
    metrics: Mapping[str, MetricName] = field(compare=False)
    """Name in the expression -> the metric."""
    paths: Mapping[str, str] = field(compare=False)
    """Name in the expression -> the path of a value."""
    compute: Callable[[Mapping[str, float]], float] = field(repr=False, compare=False)
    """Values of all names -> the number; not finite if the expression has no value."""

    def value_of(self, trial: Trial, report: Report) -> float | None:
        """Return its value, not finite if a metric is missing; None if a path is missing."""
        values: dict[str, float] = {}
        for name, path in self.paths.items():
            value = number_at(trial, path)
            if value is None:
                return None
            values[name] = value
        for name, metric in self.metrics.items():
            value = metric.value_in(report)
            values[name] = nan if value is None else value
        return self.compute(values) if all(map(isfinite, values.values())) else nan


def number_at(trial: Trial, path: str) -> float | None:
    """Return the number at a path of a trial, drawn or not; None if there is none."""
    value: Any = trial.params.get(path)
    if value is None:
        value = trial.config
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def list_numbers(trial: Trial) -> list[str]:
    """Return the paths at which a trial has numbers."""
    paths = dict.fromkeys((*dict(list_leaves(trial.config)), *trial.params))
    return [path for path in paths if number_at(trial, path) is not None]


def list_leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of all that is no mapping in a configuration."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from list_leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@dataclass(frozen=True, kw_only=True)
class SecondObjective:
    """The second quantity to optimise, from the validation that gives the objective."""

    direction: Direction
    quantity: Quantity

    def __str__(self) -> str:
        return f"{self.direction} {self.quantity.text}"

    @property
    def sign(self) -> float:
        """The factor that makes a value a cost: smaller is better."""
        return sign_of(self.direction)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The search: its sampler, its objectives, its size, and the validations that it keeps."""

    sampler: Any
    """A plug-in of the family that `load` was given under `sampler`."""
    stopping: tuple[Any, ...] = ()
    """Plug-ins of the family `stopping`; a trial stops when one of them says so."""
    objective: Objective
    second: SecondObjective | None = None
    """With a second objective no trial is the best; several are the Pareto front."""
    feasible: tuple[Quantity, ...] = ()
    """A trial is feasible if none of them is above 0."""
    trials: int = size(high=MOST_TRIALS)
    """Trials of the study."""
    group: int = size(1)
    """Trials that share one draw of the space's `group:` block."""
    seed: int = knob(0, low=0, high=2**63 - 1, integer=True)
    """Seed of the sampler and of every trial's own seed."""
    history: History = option("thin", ("full", "thin", "last"))
    """Validations that are kept."""

    @property
    def signs(self) -> tuple[float, ...]:
        """The factors of the objectives that make their values costs."""
        return (self.objective.sign, self.second.sign) if self.second else (self.objective.sign,)

    @property
    def objectives_text(self) -> str:
        """The objectives in words, without the direction of the first."""
        return f"{self.objective} and {self.second}" if self.second else str(self.objective)
