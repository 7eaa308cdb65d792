"""What every peer is asked to do, and what it must leave behind to be believed."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Dropout = Literal["table1", "on", "off"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One search: the same for every peer, except that slow ones may be given fewer trials."""

    task: str = "set_complement"
    trials: int = 256
    steps: int = 1000
    dropout: Dropout = "table1"
    processes: int = os.cpu_count() or 1
    """Processes of a peer, and workers of Graft: one per core."""
    validate_every: int = 250
    validation_batch: int = 1024
    seed: int = 0

    def to_json(self) -> str:
        """As it is passed to a peer's process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> tuple[Plan, Path]:
        """Return the plan and the folder that a peer's process was started with."""
        parser = argparse.ArgumentParser(description="A peer's process, which `python -m benchmarks.peers` starts.")
        parser.add_argument("plan", help="as JSON")
        parser.add_argument("folder", type=Path, help="where its results go")
        options = parser.parse_args()
        return cls(**json.loads(options.plan)), options.folder


@dataclass(frozen=True)
class Draw:
    """A hyperparameter: a number u uniform on [low, high], and what becomes of it, in a space file and in Python."""

    low: float
    high: float
    form: str
    """The expression of a space file, with {} where the draw stands."""
    value: Callable[[float], float]

    @property
    def expression(self) -> str:
        return self.form.format(f"uniform({self.low}, {self.high})")


def uniform(low: float, high: float) -> Draw:
    return Draw(low, high, "{}", lambda u: u)


def power_of_ten(low: float, high: float) -> Draw:
    return Draw(low, high, "10 ** {}", lambda u: 10**u)


def one_minus_power_of_ten(low: float, high: float) -> Draw:
    return Draw(low, high, "1 - 10 ** {}", lambda u: 1 - 10**u)


def whole_power_of_ten(low: float, high: float) -> Draw:
    return Draw(low, high, "floor(10 ** {})", lambda u: math.floor(10**u))


def positive_part(low: float, high: float) -> Draw:
    return Draw(low, high, "relu({})", lambda u: max(0.0, u))


def values(draws: Mapping[str, Draw], drawn: Mapping[str, float]) -> dict[str, float]:
    """Path -> hyperparameter, from path -> u."""
    return {path: draw.value(drawn[path]) for path, draw in draws.items()}


class Trained(NamedTuple):
    """A trial as a peer stored it; times in seconds of any one clock."""

    steps: int
    started: float
    finished: float
    objective: float | None
    """The last validation's objective; None if the trial diverged."""


class Peer(ABC):
    """A way to run a search: a command, and a reader of the results that the command stored."""

    @abstractmethod
    def command(self, plan: Plan, folder: Path) -> list[str]:
        """Return what to run with the empty `folder` as working directory; may write files there first."""

    @abstractmethod
    def results(self, folder: Path) -> list[Trained]:
        """All trials that the command stored in `folder`."""


def module_command(module: str, plan: Plan, folder: Path) -> list[str]:
    """Run a peer's module as a program; it reads `Plan.from_arguments`."""
    return [sys.executable, "-m", module, plan.to_json(), str(folder)]
