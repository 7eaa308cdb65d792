"""`--steps` on any space: what has to be set so that its trials train for so many steps.

All that counts optimizer steps is cut in proportion: validation, warm-up, a curriculum, resets, and
what a stopping policy waits for. Which fields these are, the plug-ins say (`step_count`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from graft.plugins.families import families
from spaces import load
from spaces.experiment import ExperimentSpace
from spaces.grammar.formulas import Level
from spaces.grammar.nodes import compose, read
from spaces.plugins import build, canonical_json, config_of, step_counts
from spaces.reading import catalogue
from spaces.records import Trial
from spaces.settings import Training
from spaces.space import DrawnSpace, Space
from spaces.transfer import TransferSpace

_STEPS = "training.steps"
_DRAWS = 64
"""Trials whose step counts are looked at."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The values that are set so that trials train for so many steps."""

    overrides: Mapping[str, str]
    """Path -> YAML value."""
    kept: tuple[str, ...] = ()
    """Paths that count steps too, and stay as they are: no path leads into an option of a choice."""


def cut_steps(origin: str, steps: int, overrides: Mapping[str, str]) -> Cut:
    """Find the overrides that give a space's trials so many steps; `overrides` are set as well.

    Where trials, the tasks of a transfer or the arms of an experiment train for different lengths,
    the longest gets `steps`, and all others in proportion; but trials of one space that draw their
    steps all get `steps`.
    """
    if steps < 1:
        return Cut(overrides={_STEPS: str(steps)})
    space = load(origin, families(), {path: value for path, value in overrides.items() if path != _STEPS})
    if isinstance(space, TransferSpace):
        return Cut(overrides=_cut_transfer(space, origin, steps))
    if isinstance(space, ExperimentSpace):
        return _cut_experiment(space, origin, steps)
    assert isinstance(space, DrawnSpace), "there are three kinds of spaces"
    cutting = _Cutting(space, steps / _longest(_sample(space)))
    stopping = cutting.stopping()
    return Cut(overrides={_STEPS: str(steps), **cutting.values, **stopping}, kept=tuple(cutting.kept))


def _sample(space: Space) -> list[Trial]:
    uniform = Random(0).random
    return [space.sample(number, lambda _: uniform()) for number in range(_DRAWS)]


def _longest(trials: list[Trial]) -> int:
    return max(trial.config["training"]["steps"] for trial in trials)


def _counts(config: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Path, value and least value of everything in a trial's configuration that counts steps."""
    parts = {name: build(family, config[name]) for name, family in families().items() if name in config}
    parts["training"] = Training(**config["training"])
    return [count for name, part in parts.items() for count in step_counts(part, name)]


@dataclass
class _Cutting:
    """One space whose trials are cut to a share of their steps."""

    space: DrawnSpace
    share: float
    values: dict[str, str] = field(default_factory=dict[str, str])
    """Path -> what it becomes, the steps themselves apart."""
    kept: dict[str, None] = field(default_factory=dict[str, None])

    def __post_init__(self) -> None:
        rows = {row.path: row for row in self.space.describe()}
        chosen = [path for path, row in rows.items() if row.level is not Level.CONSTANT]
        counts = {path: count for trial in _sample(self.space) for path, *count in _counts(trial.config)}
        for path, (value, least) in counts.items():
            row = rows.get(path)
            is_drawn = row is not None and row.level is not Level.CONSTANT
            if path == _STEPS or not (is_drawn or value > 1):
                continue
            if any(path.startswith(f"{option}.") for option in chosen) or (row and row.condition):
                self.kept[path] = None
            elif row and is_drawn:
                self.values[path] = f'"max({least}, round({self.share!r} * ({_as_expression(row.text)})))"'
            else:
                self.values[path] = str(self.scale(value))

    def scale(self, count: int) -> int:
        """Cut a number of steps in proportion; at least one is left."""
        return max(1, round(count * self.share))

    def stopping(self) -> dict[str, str]:
        """Return the stopping policies of the search; none where nothing of them changes."""
        policies = self.space.search.stopping
        configs = [config_of(policy) for policy in policies]
        for config, policy in zip(configs, policies, strict=True):
            for path, value, _ in step_counts(policy):
                if value > 1:
                    config[path] = self.scale(value)
        if configs == [config_of(policy) for policy in policies]:
            return {}
        return {"search.stopping": canonical_json(configs)}


def _as_expression(text: str) -> str:
    """Return a value as an expression, also one that is written as `{uniform: [0, 100]}`."""
    node = read(compose(text, "the space"))
    if not isinstance(node.content, Mapping):
        return str(node.content)
    [(kind, arguments)] = node.content.items()
    assert isinstance(arguments.content, tuple), "a draw in this form has a list"
    return f"{kind}({', '.join(_as_expression(argument.text) for argument in arguments.content)})"


def _cut_experiment(space: ExperimentSpace, origin: str, steps: int) -> Cut:
    """Return each arm in proportion; what an arm sets itself is cut there."""
    root: Any = read(compose(catalogue.read_text(origin), origin))
    arms: Mapping[str, Any] = root.content["arms"].content if "arms" in root.content else {}
    share = steps / max(_longest(_sample(arm.space)) for arm in space.arms)
    values: dict[str, str] = {}
    kept: dict[str, None] = {}
    for arm in space.arms:
        own: Any = arms[arm.name].content if arm.name in arms else None
        cutting = _Cutting(arm.space, share)
        kept |= cutting.kept
        longest = _longest(_sample(arm.space))
        for path, value in {_STEPS: str(cutting.scale(longest)), **cutting.values}.items():
            above = next((key for key in own or () if f"{path}.".startswith(f"{key}.")), None)
            if above is None:
                values[path] = value
            elif above == path and arm.name.isidentifier():
                values[f"arms.{arm.name}.{path}"] = value
            else:
                kept[f"arms.{arm.name}.{path}"] = None
        values |= cutting.stopping()
    return Cut(overrides=values, kept=tuple(kept))


def _cut_transfer(space: TransferSpace, origin: str, steps: int) -> dict[str, str]:
    configs = {domain.name: _config(domain.baseline) for domain in space.domains}
    share = steps / max(config["training"]["steps"] for config in configs.values())
    # The tasks that are a space's name alone.
    root: Any = read(compose(catalogue.read_text(origin), origin))
    tasks = root.content["transfer"].content["tasks"].content
    named = {name: task.word for name, task in tasks.items() if isinstance(task.content, str)}
    cut: dict[str, str] = {}
    for domain in space.domains:
        here = f"transfer.tasks.{domain.name}"
        parts = {"set": dict(_scale(configs[domain.name], share))}
        if domain.searched:
            parts["learn"] = dict(_scale(_config(domain.searched), share))
        if domain.name in named:
            cut[here] = f"space: {named[domain.name]}"
            for part, values in parts.items():
                fields = ", ".join(f"{path}: {value}" for path, value in values.items())
                cut[here] += f", {part}: {{{fields}}}"
            cut[here] = f"{{{cut[here]}}}"
        else:
            cut |= {f"{here}.{part}.{path}": value for part, values in parts.items() for path, value in values.items()}
    return cut


def _config(space: Any) -> Mapping[str, Any]:
    return space.sample(0, lambda _: 0.5).config


def _scale(config: Mapping[str, Any], share: float) -> Iterator[tuple[str, str]]:
    for path, value, _ in _counts(config):
        if value > 1:
            yield path, str(max(1, round(value * share)))
