"""Lanes: the trials at each lane index, their progress, and when their next reports are due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from spaces.records import Fingerprint, Trial
from workers.engine.pack.lineage import Takeover
from workers.numerics.layout import Layout
from workers.training.recipe import Recipe, layout_of

NARROWEST = 2
"""The fewest lanes of a pack: products of one lane take another kernel, with other rounding."""


@dataclass(kw_only=True)
class LaneTrial:
    """The trial that a lane trains, and its progress."""

    number: int
    fence: int
    """The fence of the start that brought the trial here, as in `TrialStart`."""
    steps: int
    """Optimizer steps of the whole trial."""
    layout: Layout
    """The layout of the trial's parameters without padding."""
    recipe: Recipe
    """The recipe that trains here now: the trial's, or one of its ancestors'."""
    tested: bool = False
    """True if it is evaluated on its test sets, too."""
    study: int = 0
    """The study of the trial, as trial numbers are unique within a study only."""
    step: int = 0
    reported_step: int = 0
    start_step: int = 0
    """The step at which it was placed in the pack."""
    takeovers: list[Takeover] = field(default_factory=list[Takeover])
    """Those that take the lane over from an ancestor, in order; the trial itself is last."""
    fingerprint: Fingerprint | None = None
    """The fingerprint of the training here, once it has reported."""

    @classmethod
    def of(cls, trial: Trial, study: int = 0) -> LaneTrial:
        """Return a trial at step 0."""
        recipe = Recipe.of(trial.config)
        return cls(
            number=trial.number,
            fence=trial.fence,
            steps=int(recipe.training.steps),
            layout=layout_of(recipe),
            recipe=recipe,
            tested=trial.tested,
            study=study,
        )

    @property
    def has_trained(self) -> bool:
        """True if a checkpoint of the trial would save any training.

        The state of an ancestor in its lane is not the trial's own, and without a step here
        resuming would save nothing.
        """
        return not self.takeovers and self.step > self.start_step

    def steps_until_report(self, every: int) -> int:
        """Return the steps to the next validation (every `every`, and the last) or takeover."""
        if self.takeovers:
            return self.takeovers[0].step - self.step
        if self.report_due(every):
            return 0  # memory ran out in its validation, which has to be repeated
        return min(every - self.step % every, self.steps - self.step)

    def report_due(self, every: int) -> bool:
        """Return True if the trial must be validated now; an ancestor has reported already."""
        at_step = self.step % every == 0 or self.step == self.steps
        return at_step and self.step > self.reported_step and not self.takeovers


@final
class Lanes:
    """The lanes of a pack by lane index."""

    def __init__(self, width: int) -> None:
        self.trials: list[LaneTrial | None] = [None] * width
        """The trial of each lane, by lane index; None in a free one."""

    @property
    def occupied(self) -> list[tuple[int, LaneTrial]]:
        """Index and trial of each lane that has one."""
        return [(index, running) for index, running in enumerate(self.trials) if running]

    def indices(self, study: int) -> dict[int, int]:
        """Map the numbers of a study's trials in training to their lanes."""
        return {running.number: index for index, running in self.occupied if running.study == study}

    @property
    def first_free(self) -> int:
        return self.trials.index(None)

    def find(self, number: int, study: int) -> tuple[int, LaneTrial]:
        """Return a trial in training and its lane index, by number; raises KeyError."""
        index = self.indices(study)[number]
        running = self.trials[index]
        assert running, "a trial in training has a lane"
        return index, running

    def release(self, numbers: Iterable[int], study: int) -> None:
        """Free the lanes of these trials; other numbers are ignored."""
        indices = self.indices(study)
        for number in numbers:
            if number in indices:
                self.trials[indices[number]] = None

    def resize(self, width: int) -> None:
        """Move the occupied lanes to the front, in their order, and have `width` in all."""
        kept = [running for _, running in self.occupied]
        self.trials = [*kept, *[None] * (width - len(kept))]

    def find_parent(self, trial: Trial, study: int) -> int | None:
        """Return the index of the lane whose state the trial can copy, if there is one.

        A parent that has trained on since the decision has another state by now, and one whose lane
        still trains its ancestor has none yet.
        """
        if trial.parent is None or trial.parent not in self.indices(study):
            return None
        index, running = self.find(trial.parent, study)
        return index if running.step == trial.parent_step and not running.takeovers else None
