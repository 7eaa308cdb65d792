"""A space read for a launch, and what its trials train by loaded meanwhile; without a database."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from graft.plugins.families import families
from spaces import load

if TYPE_CHECKING:
    from spaces.space import Space

CHECKED_DRAWS = 4000
"""Trials drawn before a launch, so that a rule that only few draws break is reported then; a fifth of a second."""

LOOKED_AT = 8
"""Trials whose native steps are loaded ahead."""


def read_space(origin: str, overrides: Mapping[str, str]) -> Space:
    """Read a space, from a file or a packaged one, and try draws of it."""
    space = load(origin, families(), overrides)
    space.check(CHECKED_DRAWS)
    return space


def begin_loading_steps(space: Space, device: str) -> None:
    """Load or compile in the background what trials of a space train by, while the space is looked at."""
    from workers.engine.step import begin_loading

    uniform = Random(0).random
    trials = [space.sample(number, lambda _: uniform()) for number in range(min(LOOKED_AT, space.search.trials))]
    for trial in {trial.structure: trial for trial in trials}.values():
        begin_loading(trial.config, device)
