"""The time that a study will still take, from the steps of its trials, with a range."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from search.steering.running_trials import RunningTrial
from spaces.progress import TimeLeft
from spaces.records import Trial

REMEMBERED = 100
"""The newest trials that give speed, length and early stopping: packs widen, and stages differ."""
_TAIL = 0.1
"""The fastest and the slowest tenth of trials are left out of the range of speeds."""
_STAGE_ONE = "transfer.task"
"""The param that only a trial of stage one of a transfer has."""


class EndedTrial(NamedTuple):
    """The facts about an ended trial by which others are predicted."""

    planned: int
    """Steps that it was to train in its lane."""
    steps: int
    """Steps that it trained there."""
    seconds: float
    """Time that it had the lane."""


class OpenTrial(NamedTuple):
    """A trial that has a lane now."""

    steps: int
    """Steps that it has to train in the lane, from when it got it."""
    seconds: float
    """Time since then."""


def is_stage_one(params: Collection[str]) -> bool:
    """Return True if a trial with params of these paths belongs to stage one of a transfer."""
    return _STAGE_ONE in params


def estimate_time_left(
    ended: Sequence[EndedTrial], running: Sequence[OpenTrial], waiting: int, waiting_steps: float
) -> TimeLeft | None:
    """Estimate the least and the most time until all trials have ended, at the present lanes.

    `ended`: trials that show the speed of a lane; `waiting`: trials without a lane, each of
    `waiting_steps` steps. `None` while no ended trial made a step, or no trial runs.

    A lane's seconds per step are those of the ended trials, from their fastest tenth to their
    slowest. A running trial has its steps times that, less the time that it has had its lane, so
    that its part falls with every second, reports or none. A waiting trial has all its steps; at
    the least it is stopped as early as the ended ones were on average, at the most it trains to its
    end. With work W in lane-seconds, m lanes and the longest trial L, any order takes max(W / m, L)
    at the least, and an order that leaves no lane idle while a trial waits takes W / m + (1 - 1/m)
    L at the most (Graham 1966, "Bounds for certain multiprocessing anomalies"); with none waiting
    it takes L.

    At a constant speed both numbers fall while steps run. When a trial ends, the least may rise, if
    it trained longer than those before it; the most may not.
    """
    rates = sorted(trial.seconds / trial.steps for trial in ended if trial.steps > 0)
    if not rates or not running:
        return None
    fast, slow = rates[int(_TAIL * len(rates))], rates[-1 - int(_TAIL * len(rates))]
    share = sum(trial.steps for trial in ended) / sum(trial.planned for trial in ended)
    lanes = len(running)
    early = [max(share * trial.steps * fast - trial.seconds, 0.0) for trial in running]
    late = [max(trial.steps * slow - trial.seconds, 0.0) for trial in running]
    if not waiting:
        return TimeLeft(max(early), max(late))
    shortest, longest = waiting_steps * share * fast, waiting_steps * slow
    least = (sum(early) + waiting * waiting_steps * share * fast) / lanes
    most = (sum(late) + waiting * waiting_steps * slow) / lanes
    return TimeLeft(max(least, *early, shortest), most + (1 - 1 / lanes) * max(*late, longest))


@final
@dataclass(kw_only=True)
class Pace:
    """The speed, length and early stopping of trials, as the controller has seen them."""

    _ended: deque[EndedTrial] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _started: deque[Trial] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def note_start(self, trial: Trial) -> None:
        """Note that a trial gets a lane."""
        self._started.append(trial)

    def note_end(self, running: RunningTrial, now: float) -> None:
        """Note that a trial leaves its lane."""
        planned, made = _planned_steps(running.trial), running.step - running.first_step
        ended = EndedTrial(planned - running.first_step, made, now - running.started)
        self._ended.append(ended)

    def time_left(self, running: Sequence[RunningTrial], waiting: int, now: float) -> TimeLeft | None:
        """Estimate the time left (`estimate_time_left`) with so many trials `waiting` for a lane.

        They count as long as those that were started last. `None` while trials wait in stage one of
        a transfer, as stage two is unknown then. Before a trial has ended, the running ones that
        have reported show the speed.
        """
        started = [*self._started]
        if not started or (waiting and is_stage_one(started[-1].params)):
            return None
        started = [trial for trial in started if not is_stage_one(trial.params)] or started
        shown: Sequence[EndedTrial] = [*self._ended] or [
            EndedTrial(steps, steps, lane.reported - lane.started)
            for lane in running
            if (steps := lane.step - lane.first_step) > 0
        ]
        opened = [OpenTrial(_planned_steps(lane.trial) - lane.first_step, now - lane.started) for lane in running]
        mean_steps = sum(map(_planned_steps, started)) / len(started)
        return estimate_time_left(shown, opened, waiting, mean_steps)


def _planned_steps(trial: Trial) -> int:
    return trial.config["training"]["steps"]
