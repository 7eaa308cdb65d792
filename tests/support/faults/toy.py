"""A made-up trial: what it says is a pure function of (config, seed, step), reached step by step.

Every step stirs a word that began as a hash of configuration and seed. A step that is made twice, left out, or made
from another trial's state gives another word and with it another loss.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

SPACE = Path(__file__).with_name("toy_space.yaml")
STUDY = "toy"
LEASE_SECONDS, SWEEP_SECONDS, BEAT_SECONDS, SELF_STOP_SECONDS = 3.0, 0.5, 0.5, 2.25
"""A twentieth of what they are where time is not short."""
OBJECTIVE = ("tvd", "bema", "")
"""Name, variant and condition of what the space minimises."""
_WORD = (1 << 64) - 1
_DIVERGING, _FAILING = 0.03, 0.06
"""The share of trials that diverge, and that share with the trials that fail."""


class Fate(NamedTuple):
    """How a trial ends if nobody prunes it."""

    state: Literal["finished", "diverged", "failed"]
    step: int


@dataclass(kw_only=True)
class Training:
    """A trial on its way."""

    config: Mapping[str, Any]
    seed: int
    step: int = 0
    word: int = 0

    def __post_init__(self) -> None:
        self.word = self.word or beginning(self.config, self.seed)

    def advance(self) -> None:
        """One step."""
        self.step += 1
        self.word = stirred(self.word)

    def is_due(self) -> bool:
        """Whether it reports at this step."""
        return self.step in due(self.config, self.seed)

    def metrics(self) -> dict[tuple[str, str, str], float]:
        """(name, variant, condition) -> value, at this step; none where it diverges or fails."""
        fate = fate_of(self.config, self.seed)
        if fate.state != "finished" and self.step == fate.step:
            return {}
        floor = _unit(beginning(self.config, self.seed))
        loss = floor + (1 - floor) * math.exp(-self.step / 40) + 0.05 * _unit(self.word)
        return {OBJECTIVE: loss, ("loss", "raw", ""): 2 * loss}


def beginning(config: Mapping[str, Any], seed: int) -> int:
    """Return the word of a trial that has made no step."""
    text = json.dumps([config, seed], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) | 1


def stirred(word: int) -> int:
    """Return the word after one more step: Knuth's linear congruence, then Steele's mixing of its upper half."""
    word = (word * 6364136223846793005 + 1442695040888963407) & _WORD
    return (word ^ (word >> 29)) or 1


def due(config: Mapping[str, Any], seed: int) -> list[int]:
    """Return the steps at which a trial reports if nobody prunes it, the last one included."""
    every, last = config["training"]["validate_every"], fate_of(config, seed).step
    return [*range(every, last, every), last]


def fate_of(config: Mapping[str, Any], seed: int) -> Fate:
    """How the trial ends: most finish, a few diverge or fail at one of their validations."""
    planned, every = config["training"]["steps"], config["training"]["validate_every"]
    chance = _unit(stirred(beginning(config, seed) ^ _WORD))
    early = every * (1 + seed % (planned // every))
    if chance < _DIVERGING:
        return Fate("diverged", early)
    return Fate("failed", early) if chance < _FAILING else Fate("finished", planned)


def curve(config: Mapping[str, Any], seed: int) -> dict[int, dict[tuple[str, str, str], float]]:
    """Step -> metrics, for every due step of a whole training."""
    training, steps = Training(config=config, seed=seed), due(config, seed)
    points: dict[int, dict[tuple[str, str, str], float]] = {}
    while training.step < steps[-1]:
        training.advance()
        if training.step in steps:
            points[training.step] = training.metrics()
    return points


def _unit(word: int) -> float:
    return (word >> 11) * 2.0**-53
