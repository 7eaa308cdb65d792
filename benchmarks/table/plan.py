"""The plan of the table of trials, read from plan.yaml, and the study of each slice."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graft import Space

PLAN = Path(__file__).with_name("plan.yaml")

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """One task of the table."""

    name: str
    task: Settings
    model: Settings
    steps: int
    metric: Mapping[str, str]
    """`minimize` or `maximize` -> the metric that a search of the task would go by."""
    structure: Mapping[str, list[Any]]
    """Path -> what a slice may choose there."""
    knobs: Settings
    """Path -> what every trial draws there."""
    plan: Settings
    """The whole file."""

    @property
    def slices(self) -> range:
        """The numbers of the task's slices."""
        return range(self.plan["slices"])

    def study(self, number: int) -> str:
        """Return the name of the study of a slice."""
        return f"table-{self.name.replace('_', '-')}-{number}"

    def choose(self, number: int) -> Settings:
        """Return the structure of a slice: path -> value, a function of the task's name and the number alone."""
        draw = random.Random(f"{self.name}/{number}")
        return {path: draw.choice(choices) for path, choices in self.structure.items()}

    def as_space(self, number: int) -> Space:
        """Return the space of a slice, to be launched or sampled."""
        [(direction, metric)] = self.metric.items()
        content: dict[str, Any] = {
            "study": self.study(number),
            "task": self.task,
            "model": dict(self.model),
            "optimizer": {},
            "training": {
                "steps": self.steps,
                "validate_every": self.steps // self.plan["validations"],
                "validation_batch": self.plan["validation_batch"],
            },
            "search": {
                "trials": self.plan["trials_of_slice"],
                "seed": number,
                "history": "full",
                "objective": {direction: f"{metric}/raw", "at": "last"},
            },
        }
        for path, value in {**self.choose(number), **self.knobs}.items():
            section, *inner, last = path.split(".") if "." in path else ("", path)
            settings = content[section] if section else content
            for name in inner:
                settings = settings.setdefault(name, {})
            settings[last] = value
        return Space(content)


def read_plan(path: Path = PLAN) -> Mapping[str, TaskPlan]:
    """Return the tasks of a plan by name."""
    plan = yaml.safe_load(path.read_text())
    return {name: _read_task(name, task, plan) for name, task in plan["tasks"].items()}


_RATES = {
    "minimal": ("embedding_dropout", "residual_dropout"),
    "attention_pooling": (),
    "transformer": ("embedding_dropout", "attention_dropout", "mlp_dropout"),
    "encoder": ("embedding_dropout", "attention_dropout", "mlp_dropout"),
    "regressor": ("embedding_dropout", "attention_dropout", "mlp_dropout"),
}
"""Model -> its rates of dropout."""


def _read_task(name: str, task: Settings, plan: Settings) -> TaskPlan:
    model = task.get("model", {"name": "transformer"})
    rates = {f"model.{rate}" for rate in _RATES[model["name"]]}
    knobs = {
        path: value.replace("STEPS", str(task["steps"])) if isinstance(value, str) else value
        for path, value in plan["knobs"].items()
        if not path.startswith("model.") or path in rates
    }
    return TaskPlan(
        name=name,
        task=task["task"],
        model=model,
        steps=task["steps"],
        metric=task["metric"],
        structure=plan["structure_of"].get(model["name"], plan["structure"]),
        knobs=knobs,
        plan=plan,
    )
