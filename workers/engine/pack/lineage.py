"""Lineage: how a trial that is a copy of others gets their state.

Either its parent is in a lane of the same pack and stands at the very step of the copy; then the state is copied. Or
its ancestors are trained again in the trial's own lane, each up to the step at which the next one took its state over.
Both give the same bits, since a state depends on configurations, seeds and steps alone.
"""

from __future__ import annotations

from typing import NamedTuple

from spaces.records import Ancestor, Trial


class Takeover(NamedTuple):
    """From this step on a lane trains with the knobs and random numbers of this trial."""

    step: int
    trial: Trial | Ancestor


def line_of_descent(trial: Trial) -> list[Takeover]:
    """List what has to be trained for the trial: its first ancestor from step 0, and so on; the trial itself last."""
    steps = (0, *(ancestor.until for ancestor in trial.lineage))
    return [Takeover(*one) for one in zip(steps, (*trial.lineage, trial), strict=True)]
