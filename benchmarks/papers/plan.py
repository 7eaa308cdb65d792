"""What is trained and what is claimed of it, from plan.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import yaml

from graft import Space

PLAN = Path(__file__).with_name("plan.yaml")

Expected = Literal["less", "more", "open"]


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """A packaged space with some of its paths set."""

    name: str
    space: str
    """The name of a packaged space, or of a file beside the plan, as `precision.yaml`."""
    set: Mapping[str, Any]

    @property
    def study(self) -> str:
        """The name of its study in the database."""
        return f"papers-{self.name}"

    def as_space(self) -> Space:
        """Return the space, to be launched."""
        space = Space(str(PLAN.with_name(self.space)) if self._is_file else self.space)
        for path, value in {"study": self.study, **self.set}.items():
            space = space.set(path, value)
        return space

    def command(self) -> str:
        """Return the call of `search launch` that trains the same trials."""
        origin = f"benchmarks/papers/{self.space}" if self._is_file else self.space
        settings = (quote(f"{path}={json.dumps(value)}") for path, value in self.set.items())
        return " --set ".join([f"search launch {origin}", *settings]) + f" --study {self.study}"

    @property
    def _is_file(self) -> bool:
        return self.space.endswith(".yaml")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: of two arms, or of two conditions of the same trials."""

    study: str
    item: str
    claim: str
    metric: str
    condition: str
    against: str
    """The baseline arm, or where there is no `arm` the baseline condition."""
    arm: str = ""
    of: str = ""
    """The arm whose trials' conditions are compared, in a study of arms."""
    expected: Expected
    """Direction of the difference that the plan expects."""
    paper: str
    """The paper's own numbers, as it gives them."""
    difference: float = 0.0
    """Smallest difference of interest of the row as a claim; 0: it is none, as it compares conditions of one trial."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One metric of a study whose trials differ by their seeds alone, which is compared with nothing."""

    study: str
    """The study, of which there are no rows."""
    item: str
    metric: str
    condition: str = ""
    steps: tuple[int, ...]
    """The steps after which it is told."""
    paper: str
    """The paper's own numbers, or how it shows them."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Studies in the order in which they are trained, and what is said of them."""

    studies: Mapping[str, StudyPlan]
    rows: tuple[Row, ...]
    levels: tuple[Level, ...] = ()


def read_plan(path: Path = PLAN) -> Plan:
    """Return the plan in a file."""
    plan = yaml.safe_load(path.read_text())
    studies = {name: StudyPlan(name=name, **fields) for name, fields in plan["studies"].items()}
    levels = (Level(**fields | {"steps": tuple(fields["steps"])}) for fields in plan["levels"])
    return Plan(studies=studies, rows=tuple(Row(**fields) for fields in plan["rows"]), levels=tuple(levels))
