"""A space with a claim."""

from __future__ import annotations

from graft.plugins.families import families
from spaces import parse
from spaces.experiment import ExperimentSpace
from tests.support.answers import EXPERIMENT

CLAIMED = f"{EXPERIMENT}claim: {{arm: average, difference: 0.05}}\n"


def space_of(text: str) -> ExperimentSpace:
    space = parse(text, "claim.yaml", families())
    assert isinstance(space, ExperimentSpace)
    return space
