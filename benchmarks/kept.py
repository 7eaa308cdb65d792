"""Kept trials trained again, from the text of a space that is kept with them."""

from __future__ import annotations

import graft
from search.steering.strategies import begin
from spaces.grammar.sections import defaults_of
from spaces.records import Report
from workers.engine.replay import retrain


def train_again(space: str, numerics: int, number: int) -> list[Report]:
    """Train trial `number` of a space's text alone, with the defaults of a version of the numerics; its reports.

    The space has a sampler that does not learn: what it draws follows from its seed and the number.
    """
    with defaults_of(numerics), graft.Space(space).load() as loaded:
        [trial] = begin(loaded, []).ask(range(number, number + 1))
        return retrain(trial, steps=int(trial.config["training"]["steps"]), device="cpu", watch=lambda _: None)
