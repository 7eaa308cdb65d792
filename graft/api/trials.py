"""One trial of a stored study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any, Self

import polars as pl

from graft.api.display import frame_table, table
from graft.stored.trials import summarise_metrics
from spaces.records import describe_constraints, is_feasible


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial as the database has it."""

    study: str
    number: int
    state: str
    objective: float | None
    steps: int
    seed: int
    params: Mapping[str, Any]
    """Dotted path -> value of each draw, and of the facts that follow from the draws."""
    draws: Mapping[str, float]
    """The sampler's coordinates."""
    config: Mapping[str, Any]
    error: str | None
    second_objective: float | None
    """None in a study of one objective."""
    constraints: Mapping[str, float | None] | None
    """Each constraint -> the distance beyond its bound, broken above 0; None if not known."""
    metrics: pl.DataFrame = field(repr=False)
    """step, name, variant, condition and value of the stored validations."""

    @classmethod
    def of(cls, study: str, row: Mapping[str, Any], metrics: pl.DataFrame) -> Self:
        """Return the record of a row of `trials`, its JSON columns as values."""
        known = {column.name: row[column.name] for column in fields(cls) if column.name in row}
        return cls(study=study, metrics=metrics, **known)

    @property
    def feasible(self) -> bool:
        """True if the trial breaks no constraint, as far as is known."""
        return is_feasible(self.constraints)

    def summary(self) -> pl.DataFrame:
        """Return the lowest, highest and last value of each metric, with their steps."""
        return summarise_metrics(self.metrics)

    def _repr_html_(self) -> str:
        facts = [(name, getattr(self, name)) for name in ("state", "objective", "second_objective", "steps", "error")]
        shown = [(name.replace("_", " "), value) for name, value in facts if value is not None]
        shown += [("constraints", line) for line in describe_constraints(self.constraints)]
        heading = f"<b>trial {self.number} of {escape(self.study)}</b>"
        return f"{heading}{table([*shown, *self.params.items()])}{frame_table(self.summary())}"
