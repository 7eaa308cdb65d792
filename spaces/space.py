"""A space: the trials that a study may try, as a function from coordinates in [0, 1) to trials."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from spaces.errors import SpaceError, StudyError
from spaces.grammar.declarations import LeafDescription
from spaces.grammar.formulas import CoordinateOf, Draw
from spaces.program import Program
from spaces.records import Ancestor, Draws, StoredTrial, Trial
from spaces.seeds import trial_seed
from spaces.settings import Search

LAST = 1.0 - 2.0**-53
"""The largest coordinate."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Space(ABC):
    """One space file, read and compiled. A trial is a pure function of (space, number, draws)."""

    name: str
    text: str
    """YAML that reads as this very space, overrides included."""
    hash: str
    """SHA-256 of the space's content, whatever its comments, layout and order."""
    search: Search
    group_draws: tuple[Draw, ...]
    """The draws that the trials of a group share, those under a condition included."""
    trial_draws: tuple[Draw, ...]
    """The draws that each trial makes for itself, those under a condition included."""
    rows: tuple[LeafDescription, ...]
    drawn_sizes: tuple[str, ...]
    """Paths of drawn sizes that may be padded: trials of one structure may then differ in them."""

    @abstractmethod
    def sample(self, number: int, coordinate_of: CoordinateOf) -> Trial:
        """Return trial `number` with the coordinates that `coordinate_of` gives.

        `coordinate_of` is called exactly once for each active draw: first the group's, then the
        trial's, in the order of the file, but a named value comes after those it depends on. It is
        not called for draws under options that a choice did not take. Raises SpaceError if the
        draws break a rule.
        """

    @property
    def draws(self) -> tuple[Draw, ...]:
        """All draws, those of the group first."""
        return (*self.group_draws, *self.trial_draws)

    @property
    def own_draws(self) -> tuple[Draw, ...]:
        """The draws that each trial has for itself; a group of one trial shares none."""
        return self.trial_draws if self.search.group > 1 else self.draws

    def resolve(self, number: int, draws: Draws) -> Trial:
        """Return the trial of stored draws; SpaceError if one is missing, as in a changed space."""

        def find_coordinate(draw: Draw) -> float:
            if draw.name not in draws:
                problem = f"trial {number} was stored without the draw {draw.name}"
                raise SpaceError(f"{self.name}: {problem}")
            return draws[draw.name]

        return self.sample(number, find_coordinate)

    def child(self, parent: Trial, number: int, start: int, draws: Draws) -> Trial:
        """Return the trial that continues from `parent` after `start` steps, padded as `parent` is."""
        past = Ancestor(parent.number, parent.seed, parent.config, until=start)
        trial = self._keep_padding(self.resolve(number, draws), parent.config)
        return replace(trial, group=parent.group, lineage=(*parent.lineage, past))

    def restore(self, lineage: Sequence[StoredTrial]) -> Trial:
        """Return the last trial of a stored lineage; one from step 0 is a lineage of one.

        The sizes of a lineage are padded if its first trial's stored configuration says so: the
        space may have been changed since, and would decide otherwise now.
        """
        first, *later = lineage
        trial = self._keep_padding(self.resolve(first.number, first.draws), first.config)
        for stored in later:
            trial = self.child(trial, stored.number, stored.parent_step, stored.draws)
        return trial

    def _keep_padding(self, trial: Trial, config: Mapping[str, Any]) -> Trial:
        """Return the trial with its sizes padded, or not, as in an earlier configuration."""
        decided = trial.config["training"]
        pad = {**decided, **config.get("training", {})}["pad_shapes"]
        return trial if pad == decided["pad_shapes"] else self.pad(trial, pad)

    def pad(self, trial: Trial, pad: bool) -> Trial:
        """Return a trial of this space with its sizes padded or not, whatever the space decides.

        A space that never decides by itself returns the trial as it is.
        """
        return trial

    def check(self, samples: int = 200) -> None:
        """Try the extreme and `samples` random coordinates; SpaceError for the first fault."""
        uniform = random.Random(0).random
        tried: list[CoordinateOf] = [lambda _: 0.0, lambda _: LAST]
        for number, coordinate_of in enumerate(tried + [lambda _: uniform()] * samples):
            self.try_draws(number, coordinate_of)

    def try_draws(self, number: int, coordinate_of: CoordinateOf) -> None:
        """Raise SpaceError if these draws of trial `number` break a rule."""
        self.sample(number, coordinate_of)

    def describe(self) -> tuple[LeafDescription, ...]:
        """Return a row per value of the file, named values first, with its draws and condition."""
        return self.rows

    def describe_size(self) -> str:
        """Describe for people how many trials there are, and how they are grouped."""
        groups = -(-self.search.trials // self.search.group)
        size = f"{groups:,} group{'s' * (groups > 1)} of up to {self.search.group:,}"
        return f"{self.search.trials:,} trials in {size}"

    def trials_setting(self, planned: int) -> int:
        """Return the file's `search.trials` that plans so many trials in all; StudyError if none."""
        return planned

    @property
    def tells_best(self) -> bool:
        """True if a launch tells the best trial so far: one number compares, no claim waits."""
        return self.search.second is None

    @property
    def needs_outcomes(self) -> bool:
        """True if later trials depend on the outcomes of earlier ones, whatever the sampler."""
        return False

    def trains_to_end(self, number: int) -> bool:
        """Return True if no stopping policy may observe or stop trial `number`."""
        return False

    def search_of(self, number: int) -> Search:
        """Return the settings of the search that trial `number` belongs to."""
        return self.search


def divide_trials(planned: int, each: int, others: int, *, factors: str, rest: str) -> int:
    """Return how often `each` trials, beside `others`, make `planned`; StudyError if they do not.

    `factors` says in the error what makes `each`, and `rest` what the others are.
    """
    count, left = divmod(planned - others, each)
    if count >= 1 and not left:
        return count
    count = max(count, 1)
    beside = f", beside {others:,} {rest}" if others else ""
    choices = f"choose {others + count * each:,} or {others + (count + 1) * each:,}"
    raise StudyError(f"{planned:,} trials in all do not divide: {factors}{beside}; {choices}")


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DrawnSpace(Space):
    """A space whose every trial is drawn: one task, or a choice among tasks."""

    program: Program

    def try_draws(self, number: int, coordinate_of: CoordinateOf) -> None:
        self.program.check(coordinate_of)

    def sample(self, number: int, coordinate_of: CoordinateOf) -> Trial:
        resolved = self.program.run(coordinate_of)
        return Trial(
            number=number,
            group=number // self.search.group,
            seed=trial_seed(self.search.seed, number),
            draws=resolved.draws,
            params=resolved.params,
            config=resolved.config,
            structure=resolved.structure,
        )

    def pad(self, trial: Trial, pad: bool) -> Trial:
        resolved = self.program.run(lambda draw: trial.draws[draw.name], pad)
        return replace(trial, config=resolved.config, structure=resolved.structure)
