"""What the atlas compares on what, from plan.yaml, and the experiment that it makes of each task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graft import Space

PLAN = Path(__file__).with_name("plan.yaml")
VALIDATION_BATCH = 256
"""Sequences of each set, where a task does not fix them."""

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """A set on which the arms of a task are compared."""

    task: str
    kind: str
    """`in`: like the training data; `out`: shifted."""
    metric: str
    direction: str
    """`maximize` or `minimize`."""
    condition: str
    floor: float | str
    """What needs no learning gives there, or the reported metric that says it."""


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """One task of the atlas."""

    name: str
    arms: Mapping[str, Settings]
    """Those that the task's model can have, the baseline first: path -> value."""
    endpoints: tuple[Endpoint, ...]
    space: Settings
    """The experiment, as YAML gives it."""

    @property
    def study(self) -> str:
        """The name of its study."""
        return str(self.space["study"])

    def variant(self, arm: str) -> str:
        """Which parameters of a trial stand for the arm: an arm of averaging is measured on its average."""
        return str(self.arms[arm].get("averaging", "raw"))

    def as_space(self) -> Space:
        """Return the experiment, to be launched or sampled."""
        return Space(self.space)


def read_plan(path: Path = PLAN) -> Mapping[str, TaskPlan]:
    """Return the tasks of a plan by name."""
    plan = yaml.safe_load(path.read_text())
    return {name: _read_task(name, task, plan) for name, task in plan["tasks"].items()}


def _read_task(name: str, task: Settings, plan: Settings) -> TaskPlan:
    arms = {arm: plan["arms"][arm] for arm in task.get("only", plan["arms"])}
    changes = task.get("model", {})
    model = changes if "width" in changes else {**plan["model"], **changes}
    [(direction, metric)] = task["metric"].items()
    endpoints = tuple(
        Endpoint(task=name, kind=kind, metric=metric, direction=direction, **task[kind])
        for kind in ("in", "out")
        if kind in task
    )
    training = task["training"]
    space = {
        "study": f"atlas-{name.replace('_', '-')}",
        "arms": arms,
        "seeds": plan["seeds"],
        "task": task["task"],
        "model": model,
        "optimizer": {
            "name": "adamw",
            "weight_decay": 0,
            "learning_rate": training["rate"],
            "schedule": "warmup_cooldown",
        },
        "averaging": "none",
        "training": {
            "steps": training["steps"],
            "batch": training["batch"],
            "validate_every": training["steps"] // 2,
            "validation_batch": VALIDATION_BATCH,
        },
        "search": {"objective": {direction: f"{metric}/raw", "at": "last"}, "history": "last"},
    }
    return TaskPlan(name=name, arms=arms, endpoints=endpoints, space=space)
