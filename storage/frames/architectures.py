"""The non-linearities that the trials of one study learned, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import polars as pl

from spaces.bounds import MOST_TRIALS
from spaces.settings import Direction
from storage.frames.answers import Answers, quote
from storage.frames.columns import ARCHITECTURES
from storage.schema import trial_id

_COLUMNS = "architectures.id, number, architectures.task, component, low, high, knots, objective"


@final
@dataclass(frozen=True)
class LearnedArchitectures:
    """Reads the learned non-linearities of one study."""

    _answers: Answers
    _study_id: int
    _direction: Direction

    def read(self) -> pl.DataFrame:
        """Return all of them, by task, component and number; columns ARCHITECTURES.

        `knots` are values at evenly spaced points from `low` to `high`; `objective` is the trial's.
        """
        return self._read(f"SELECT {_COLUMNS} FROM {self._learned}")

    def read_best(self, most: int, directions: Mapping[str, Direction]) -> pl.DataFrame:
        """Return those of each task's and component's `most` best trials; `directions` by task."""
        rising = [quote(task) for task, direction in directions.items() if direction == "maximize"]
        is_rising = f"'maximize' = '{self._direction}'"
        if directions:
            is_rising = f"architectures.task IN ({', '.join(rising) or 'NULL'})"
        loss = f"CASE WHEN {is_rising} THEN -objective ELSE objective END"
        groups = "PARTITION BY architectures.task, component"
        rank = f"row_number() OVER ({groups} ORDER BY {loss} NULLS LAST, number)"
        ranked = f"SELECT architectures.id, {rank} AS place FROM {self._learned}"
        kept = f"SELECT id FROM ({ranked}) AS ranked WHERE place <= {int(most)}"
        best = f"architectures.id IN ({kept})"
        return self._read(f"SELECT {_COLUMNS} FROM {self._learned} AND {best}")

    def count(self) -> int:
        """Return how many there are."""
        sql = f"SELECT count(*) FROM architectures WHERE {self._is_mine}"
        return self._answers.read(sql, {"n": pl.Int64()}).item()

    def exist(self) -> bool:
        """Return True if there are any."""
        sql = f"SELECT id FROM architectures WHERE {self._is_mine} LIMIT 1"
        return self._answers.read(sql, {"id": pl.Int64()}).height > 0

    @property
    def _learned(self) -> str:
        """SQL for architectures with their trials, joined in this order, from an index alone."""
        same = f"architectures.trial_id = trials.number + {trial_id(self._study_id, 0)}"
        condition = f"trials.study_id = {self._study_id}"
        return f"trials CROSS JOIN architectures WHERE {condition} AND {same}"

    @property
    def _is_mine(self) -> str:
        """SQL for rows of the study's trials, by an index."""
        first = trial_id(self._study_id, 0)
        return f"trial_id >= {first} AND trial_id < {first + MOST_TRIALS}"

    def _read(self, sql: str) -> pl.DataFrame:
        frame = self._answers.read(sql, {**ARCHITECTURES, "knots": pl.String()})
        knots = pl.col("knots").str.json_decode(ARCHITECTURES["knots"])
        return frame.with_columns(knots).sort("task", "component", "number")
