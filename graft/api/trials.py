"""One trial of a stored study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any, Self

import polars as pl

from graft.api.display import frame_table, table
from graft.stored.trials import read_metrics, read_trial, summarise_metrics
from storage.frames import Reader


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
    """Dotted path -> value of what was drawn, and of the facts that follow."""
    draws: Mapping[str, float]
    """The sampler's coordinates."""
    config: Mapping[str, Any]
    """The whole configuration."""
    error: str | None
    metrics: pl.DataFrame = field(repr=False)
    """step, name, variant, condition and value of its validations that are kept."""

    @classmethod
    def read(cls, reader: Reader, study: str, number: int) -> Self:
        """Raises StudyError if there is no such study, or no such trial in it."""
        row = read_trial(reader, study, number)
        texts = {name: json.loads(row[name]) for name in ("params", "draws", "config")}
        known = {name: row[name] for name in ("number", "state", "objective", "steps", "seed", "error")}
        return cls(study=study, metrics=read_metrics(reader, row["id"]), **known, **texts)

    def summary(self) -> pl.DataFrame:
        """One row per metric, variant and condition: its lowest, highest and last value, each with its step."""
        return summarise_metrics(self.metrics)

    def _repr_html_(self) -> str:
        facts = [("state", self.state), ("objective", self.objective), ("steps", self.steps), ("error", self.error)]
        shown = [(label, value) for label, value in facts if value is not None]
        heading = f"<b>trial {self.number} of {escape(self.study)}</b>"
        return f"{heading}{table([*shown, *self.params.items()])}{frame_table(self.summary())}"
