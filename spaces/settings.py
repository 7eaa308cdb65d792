"""The two fixed sections of a space that are not plug-ins: how a trial is trained, and how the search is run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal

from spaces.plugins.fields import flag, knob, option, size
from spaces.records import Report

Direction = Literal["minimize", "maximize"]
History = Literal["full", "thin", "last"]
"""Which validations of a trial are kept: all, ever fewer the longer it trains (and the best), or the last."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long a trial trains, on how much, and how often it is evaluated."""

    steps: int = knob(low=1, integer=True)
    """Optimizer steps; a knob, since lanes of one pack may train for different lengths."""
    batch: int = size(128)
    """Sequences per optimizer step."""
    validate_every: int = size(1000)
    """Steps between validations; the last step is always validated."""
    validation_batch: int = size(1024)
    """Sequences per validation."""
    dtype: str = option("float32", ("float32", "float64"))
    diagnostics: bool = flag(False)
    """Whether validation also says what attention does (`search list diagnostics`)."""
    pad_shapes: bool = flag(False)
    """Whether trials of different sizes share packs, exactly: their tensors are padded with zeros to sizes of a coarse
    grid. Left out of a space, `spaces.reading.padding` decides."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The number the search optimises: a metric's name and variant, written `tvd/bema` in a space."""

    direction: Direction
    metric: str
    variant: str
    condition: str = ""
    at: Literal["best", "last"] = "best"
    """`best`: the best validation of the trial counts (as paper 003 reports); `last`: its final one."""

    def __str__(self) -> str:
        name = f"{self.metric}/{self.variant}"
        return f"{name}/{self.condition}" if self.condition else name

    @property
    def sign(self) -> float:
        """Times a value, it gives a loss: smaller is better."""
        return 1.0 if self.direction == "minimize" else -1.0

    def value_in(self, report: Report) -> float | None:
        """The value that a report has of it, finite or not; None if the report lacks it."""
        wanted = (self.metric, self.variant, self.condition)
        return next((metric.value for metric in report.metrics if metric[:3] == wanted), None)

    def loss_in(self, report: Report) -> float:
        """The report's value, turned so that smaller is better; infinite where it has no finite one."""
        value = self.value_in(report)
        return inf if value is None or not isfinite(value) else self.sign * value

    def is_better(self, one: float, other: float) -> bool:
        """Whether `one` is better than `other` in the user's direction."""
        return self.sign * one < self.sign * other


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is tried, how much of it, and what is kept."""

    sampler: Any
    """A plug-in of the family that `load` was given under `sampler`."""
    stopping: tuple[Any, ...] = ()
    """Plug-ins of the family `stopping`; a trial stops when one of them says so."""
    objective: Objective
    trials: int = size(high=10**9)
    """Trials of the study."""
    group: int = size(1)
    """Trials that share one draw of the space's `group:` block."""
    seed: int = knob(0, low=0, high=2**63 - 1, integer=True)
    """Seed of the sampler and of every trial's own seed."""
    history: History = option("thin", ("full", "thin", "last"))
    """Validations that are kept."""
