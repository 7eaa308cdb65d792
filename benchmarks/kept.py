"""Kept trials trained again, from the text of a space that is kept with them."""

from __future__ import annotations

import graft
from search.steering.strategies import begin
from spaces.grammar.sections import defaults_of
from spaces.records import Report
from workers.engine.lane_programs import as_trained_by
from workers.engine.retraining import retrain


def train_again(space: str, numerics: int, number: int, step_kind: str = "") -> list[Report]:
    """Train trial `number` of a space's text alone, with the defaults of a version of the numerics; its reports.

    `step_kind`: what trained it, as reports have it; what was traced is traced again.

    The space has a sampler that does not learn: what it draws follows from its seed and the number.
    """
    with defaults_of(numerics), as_trained_by(step_kind), graft.Space(space).load() as loaded:
        [trial] = begin(loaded, []).ask(range(number, number + 1))
        return retrain(trial, steps=int(trial.config["training"]["steps"]), device="cpu", watch=lambda _: None)
