"""A space read for a launch, and its native steps loaded meanwhile; without a database."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from graft.plugins.families import families
from spaces import load

if TYPE_CHECKING:
    from spaces.records import Trial
    from spaces.space import Space

CHECKED_DRAWS = 4000
"""Trials drawn before a launch, in a fifth of a second, to find a rule that few draws break."""

LOOKED_AT = 8
"""Trials whose native steps are loaded ahead."""


def read_space(origin: str, overrides: Mapping[str, str]) -> Space:
    """Read a space, from a file or a packaged one, and try draws of it."""
    space = load(origin, families(), overrides)
    space.check(CHECKED_DRAWS)
    return space


def draw_trials(space: Space, count: int) -> list[Trial]:
    """Draw the first trials of a space at random, always the same, whatever its sampler is."""
    uniform = Random(0).random
    return [space.sample(number, lambda _: uniform()) for number in range(count)]


def begin_loading_steps(space: Space, device: str) -> None:
    """Load or compile the native steps of a space's trials in the background."""
    from workers.engine.step import begin_loading

    trials = draw_trials(space, min(LOOKED_AT, space.search.trials))
    for trial in {trial.structure: trial for trial in trials}.values():
        begin_loading(trial.config, device)
