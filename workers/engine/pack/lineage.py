"""Lineage: how a trial that is a copy of others gets their state.

Either its parent is in a lane of the same pack and stands at the very step of the copy; then the state is copied. Or
its ancestors are trained again in the trial's own lane, each up to the step at which the next one took its state over.
Both give the same bits, since a state depends on configurations, seeds and steps alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spaces.records import Ancestor, Trial

if TYPE_CHECKING:
    from workers.engine.pack.lanes import Lanes


class Takeover(NamedTuple):
    """From this step on a lane trains with the knobs and random numbers of this trial."""

    step: int
    trial: Trial | Ancestor


def line_of_descent(trial: Trial) -> list[Takeover]:
    """What has to be trained for the trial: its first ancestor from step 0, and so on; the trial itself last."""
    steps = (0, *(ancestor.until for ancestor in trial.lineage))
    return [Takeover(*one) for one in zip(steps, (*trial.lineage, trial), strict=True)]


def parent_lane(lanes: Lanes, trial: Trial) -> int | None:
    """Index of the lane whose state the trial can copy; None if there is none.

    A parent that has trained on since the copy was decided has another state by now, and a lane that still trains an
    ancestor of the parent does not have the parent's state yet.
    """
    if trial.parent is None or trial.parent not in lanes.indices:
        return None
    index, lane = lanes.find(trial.parent)
    return index if lane.step == trial.parent_step and not lane.takeovers else None
