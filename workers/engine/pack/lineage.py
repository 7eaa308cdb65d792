"""Lineage: how a trial that is a copy of others gets their state.

The state of its parent is copied if that is in a lane of the same pack, at the very step of the
copy. Otherwise its ancestors are trained again in the trial's own lane, each up to the next one's
takeover. Both give the same bits, since a state depends on configurations, seeds and steps alone.
"""

from __future__ import annotations

from typing import NamedTuple

from spaces.records import Ancestor, Trial


class Takeover(NamedTuple):
    """The step from which a lane trains with the knobs and random numbers of this trial."""

    step: int
    trial: Trial | Ancestor


def line_of_descent(trial: Trial) -> list[Takeover]:
    """List what is trained for the trial: its ancestors from step 0 on, and itself last."""
    steps = (0, *(ancestor.until for ancestor in trial.lineage))
    return [Takeover(*pair) for pair in zip(steps, (*trial.lineage, trial), strict=True)]
