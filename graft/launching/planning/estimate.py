"""An estimate of a launch without running it: groups, packs, steps, database size and rate."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from spaces.errors import StudyError
from storage.control.history import predict_bytes, predict_rows

if TYPE_CHECKING:
    from graft.launching.placement import Placement
    from spaces.records import Trial
    from spaces.space import Space

SAMPLED_GROUPS = 20
SAMPLED_TRIALS = 20
"""Trials that are looked at in each sampled group."""
PACK_SECONDS = 0.15
"""Seconds for which a pack is timed."""
SECONDS = 10.0
"""Seconds after which an estimate begins to time no further pack."""
TIMED = 4
"""Structures that are trained for a moment, to measure the rate."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The size of a study, by a sample of its trials."""

    space: Space
    sample: Sequence[Sequence[Trial]]
    """The first trials of a few groups."""
    groups: int
    structures: Sequence[int]
    """The number of structures among the trials of each sampled group."""
    steps: Sequence[int]
    """The steps of each sampled trial."""
    validate_every: int
    rows: int
    """Rows of metrics that a trial leaves in the database."""

    @property
    def model_steps(self) -> float:
        """Steps of all trials together."""
        return self.space.search.trials * sum(self.steps) / len(self.steps)

    @property
    def database_bytes(self) -> int:
        """The size of the whole study in the database."""
        return predict_bytes(self.sample[0][0], self.space.search.trials, self.rows)


def estimate_study(space: Space) -> Estimate:
    """Return the size of a study of this space; nothing is trained."""
    from workers.engine.reported_metrics import reported_metrics

    search = space.search
    groups = math.ceil(search.trials / search.group)
    # The first trials of a few groups, drawn at random whatever the sampler is.
    uniform = random.Random(0).random
    sample: list[list[Trial]] = []
    for group in range(0, groups, max(1, groups // SAMPLED_GROUPS)):
        start = group * search.group
        shared = {draw.name: uniform() for draw in space.group_draws}
        numbers = range(start, min(start + min(SAMPLED_TRIALS, search.group), search.trials))
        trials = [space.sample(n, lambda d: shared.get(d.name, uniform())) for n in numbers]  # noqa: B023
        sample.append(trials)
    first = sample[0][0]
    steps = [trial.config["training"]["steps"] for group in sample for trial in group]
    every: int = first.config["training"]["validate_every"]
    validations = math.ceil(max(steps) / every)
    return Estimate(
        space=space,
        sample=sample,
        groups=groups,
        structures=[len({trial.structure for trial in group}) for group in sample],
        steps=steps,
        validate_every=every,
        rows=predict_rows(search.history, validations, len(reported_metrics(first))),
    )


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """The plan of the packs of one structure."""

    width: int
    reason: str
    step: str
    """The step they would train by: `native`, or `traced` and why."""
    evaluation: str
    """The evaluation they would have, in the same words."""
    rate: float
    """Model-steps per second of the whole device."""


def plan_packs(
    estimate: Estimate, placement: Placement, show: Callable[[str], None] = lambda _: None, seconds: float = SECONDS
) -> list[PackPlan]:
    """Train a few sampled packs for a moment each, and report how and how fast a launch would.

    A study that is long enough tries other widths for one pack. No pack begins after `seconds`;
    `show` is called with a line about each. Raises StudyError if no pack fits into memory, or none
    of the width that `placement` asks for.
    """
    from workers.engine.machine.devices import default_width
    from workers.engine.machine.memory import Shortage, attempt

    device, most = str(placement.device), estimate.space.search.trials
    is_gpu = device.partition(":")[0] == "cuda"
    # Trials of a few different structures, from early and late groups.
    trials: dict[str, Trial] = {}
    for index in range(TIMED):
        group = estimate.sample[index * (len(estimate.sample) - 1) // max(1, TIMED - 1)]
        trial = group[index % len(group)]
        trials[trial.structure] = trial
    timing = _Timing(
        trials=list(trials.values()),
        device=device,
        # A pack that is timed alone does not tell how fast several are on the same GPU.
        workers=1 if is_gpu and placement.executor == "inline" else placement.workers,
        width=placement.width and min(placement.width, most),  # as a launch has it
        model_steps=estimate.model_steps,
        show=show,
        ends_at=time.monotonic() + seconds,
    )
    usual = default_width(device)
    # A pack that is wider than the study fills more of the GPU, so its rate would be too high.
    if is_gpu and most < usual:
        timing, usual = replace(timing, is_small=True), most
    # A launch halves the width of a pack that does not fit, so the estimate does too.
    while isinstance(plans := attempt(partial(timing.plans, usual), device), Shortage):
        if timing.width or usual == 1:
            raise StudyError(f"a pack of this space does not fit into the memory of {device}: {plans.reason}")
        usual //= 2
    return plans


@dataclass(frozen=True, kw_only=True)
class _Timing:
    """Trials of different structures, whose packs are to be timed on a device."""

    trials: Sequence[Trial]
    device: str
    workers: int | None
    width: int | None
    model_steps: float
    show: Callable[[str], None]
    ends_at: float
    """The time on the monotonic clock after which no pack is begun."""
    is_small: bool = False
    """True if a pack has room for all trials of the study: then no width needs to be found."""

    def plans(self, usual: int) -> list[PackPlan]:
        """Plan the packs of a launch of these trials that starts with the width `usual`."""
        from workers.engine.machine.devices import default_width
        from workers.engine.machine.process import prepare
        from workers.engine.speed.widths import PAID, FoundWidths

        prepare()
        if self.width:
            return self._plan_each(self.width, "as asked for with --pack")
        if self.is_small:
            return self._plan_each(usual, "at most as many as the study has trials")
        origin = "the default" if usual == default_width(self.device) else "what fits into memory"
        reason = f"{origin}; others are tried as soon as 2 % of the time trained pays for it"
        plans = self._plan_each(usual, reason)
        left = self.ends_at - time.monotonic()
        if left <= 0:
            return plans
        self.show("timing packs of other widths")
        finder = FoundWidths(device=self.device, sharing=self.workers)
        # What a launch would spend on widths, but no more than is left here.
        finder.add_training_time(min(self.model_steps / max(plan.rate for plan in plans), left / PAID))
        finder.explore(self.trials[0])
        # All widths are found before any is timed; `find` may try one, and `rates` then knows it.
        choices = [(trial, finder.find(trial), finder.rates(trial)) for trial in self.trials[: len(plans)]]
        for index, (trial, width, rates) in enumerate(choices):
            if width and time.monotonic() < self.ends_at:
                curve = ", ".join(f"{rate:,.0f} with {tried:,}" for tried, rate in rates.items())
                curve = curve or "no width fits in memory"
                reason = f"the fewest within 5 % of the fastest tried; model-steps/s of one worker: {curve}"
                plans[index] = self._plan(trial, width, reason)
        return plans

    def _plan_each(self, width: int, reason: str) -> list[PackPlan]:
        """Plan packs of the trials, as many as there is time for and at least one."""
        plans: list[PackPlan] = []
        for number, trial in enumerate(self.trials, 1):
            if plans and time.monotonic() >= self.ends_at:
                break
            self.show(f"timing pack {number} of {len(self.trials)}")
            plans.append(self._plan(trial, width, reason))
        return plans

    def _plan(self, trial: Trial, width: int, reason: str) -> PackPlan:
        from workers.engine.machine.devices import default_workers
        from workers.engine.pack.evaluation import describe_evaluation
        from workers.engine.speed.timing import model_steps_per_second
        from workers.engine.step import describe_step

        workers = self.workers or default_workers(self.device)
        rate = workers * model_steps_per_second(trial, width=width, device=self.device, seconds=PACK_SECONDS)
        step = describe_step(trial.config, self.device, width)
        evaluation = describe_evaluation(trial.config, self.device)
        reason = f"{width:,} lanes a pack, {reason}"
        return PackPlan(width=width, reason=reason, step=step, evaluation=evaluation, rate=rate)
