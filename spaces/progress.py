"""The progress of a study: how many trials have ended, and the time until all have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spaces.records import TERMINAL, State


class TimeLeft(NamedTuple):
    """An estimate of the seconds until all trials of a study have ended: at least, at most."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a study, as its controller (since its own start) or its database knows it."""

    planned: int
    """Trials of the whole study, with copies that a population made; a grid may have fewer."""
    counts: Mapping[State, int]
    """Trials by state, without planned ones that are not stored. `running` counts busy lanes."""
    objective: str
    best: float | None
    """The best objective of ended trials, in the user's direction; None if none is the best."""
    best_number: int | None
    steps: int
    """Optimizer steps that reports cover, summed over trials."""
    model_steps: int
    """Optimizer steps that workers made, over all lanes, with those lost and made again."""
    lane_room: int
    """The model-steps that the same packs would have made with a trial in every lane."""
    reports: int = 0
    """Reports that this controller has recorded; 0 from a database, which does not count them."""
    stopping: bool = False
    """True while the controller dismisses its workers although the study is not finished."""
    time_left: TimeLeft | None = None
    """The time until all trials have ended; None if it cannot be estimated."""

    @property
    def ended(self) -> int:
        """The number of trials that have ended."""
        return sum(count for state, count in self.counts.items() if state in TERMINAL)

    @property
    def utilisation(self) -> float | None:
        """Model-steps as a fraction of those of full packs; None before the first step."""
        return self.model_steps / self.lane_room if self.lane_room else None
