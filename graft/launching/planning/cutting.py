"""`--steps` on any space: the overrides with which its trials train for so many steps.

All that counts optimizer steps is cut in proportion: validation, warm-up, a curriculum, resets, and
what a stopping policy waits for. The plug-ins mark these fields (`step_count`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.launching.planning.reading import draw_trials
from graft.plugins.families import families
from spaces.experiment import Arm, ExperimentSpace
from spaces.grammar.formulas import Level
from spaces.grammar.nodes import Node
from spaces.plugins import build, canonical_json, config_of, step_counts
from spaces.reading.transfer_section import SETTABLE
from spaces.settings import Search, Training
from spaces.space import DrawnSpace, Space
from spaces.transfer import Domain, TransferSpace

_STEPS = "training.steps"
_DRAWS = 64
"""Trials whose step counts are looked at."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The values that are set so that trials train for so many steps."""

    overrides: Mapping[str, str]
    """Path -> YAML value."""
    kept: tuple[str, ...] = ()
    """Paths that count steps and are not cut: no path that can be set leads there."""


def cut_steps(space: Space, steps: int) -> Cut:
    """Find the overrides that give a space's trials so many steps.

    The longest task of a transfer or arm of an experiment gets `steps`, the others in proportion.
    Trials that draw their steps all get `steps`.
    """
    if steps < 1:
        return Cut(overrides={_STEPS: str(steps)})
    if isinstance(space, TransferSpace):
        return _cut_domains(space.domains, steps)
    if isinstance(space, ExperimentSpace):
        return _cut_arms(space.arms, steps)
    assert isinstance(space, DrawnSpace), "there are three kinds of spaces"
    return _cut_arms([Arm(name=space.name, space=space, paths=())], steps)


def _cut_domains(domains: Sequence[Domain], steps: int) -> Cut:
    """Cut every count of both stages of each task of a transfer."""
    share = steps / max(_longest(domain.baseline) for domain in domains)
    values: dict[str, str] = {}
    kept: list[str] = []
    for domain in domains:
        parts = {"set": domain.baseline}
        if domain.searched:
            parts["learn"] = domain.searched
        for part, space in parts.items():
            cut, below = _cut_counts(space, share), f"transfer.tasks.{domain.name}.{part}"
            for path in (*cut.overrides, *cut.kept):
                section = path.partition(".")[0]
                if section in SETTABLE[part] and path in cut.overrides:
                    values[f"{below}.{path}"] = cut.overrides[path]
                elif section in SETTABLE[part] or section not in SETTABLE["set"]:  # else stage one has it from there
                    kept.append(f"{below}.{path}")
    return Cut(overrides=values, kept=tuple(kept))


def _cut_arms(arms: Sequence[Arm], steps: int) -> Cut:
    """Cut each arm in proportion, and under `arms` the values in which arms differ."""
    share = steps / max(_longest(arm.space) for arm in arms)
    cuts = [_cut_counts(arm.space, share) for arm in arms]
    values: dict[str, str] = {}
    kept = dict.fromkeys(path for cut in cuts for path in cut.kept)
    for path in dict.fromkeys(path for cut in cuts for path in cut.overrides):
        above = [next((prefix for prefix in arm.paths if f"{path}.".startswith(f"{prefix}.")), None) for arm in arms]
        # Arms that do not set the path may differ in it through a named value.
        shared = {cut.overrides.get(path) for cut, prefix in zip(cuts, above, strict=True) if prefix is None}
        for arm, cut, prefix in zip(arms, cuts, above, strict=True):
            if path not in cut.overrides:
                continue
            if prefix is None and len(shared) == 1:
                values[path] = cut.overrides[path]
            elif prefix in (None, path) and arm.name.isidentifier():
                values[f"arms.{arm.name}.{path}"] = cut.overrides[path]
            else:
                kept[f"arms.{arm.name}.{path}"] = None
    return Cut(overrides=values | _cut_policies(arms[0].space.search, share), kept=tuple(kept))


def _cut_policies(search: Search, share: float) -> dict[str, str]:
    """Cut the step counts of the stopping policies, which all arms have; nothing if none changes."""
    configs = [config_of(policy) for policy in search.stopping]
    for config, policy in zip(configs, search.stopping, strict=True):
        config |= {path: _scale(value, share) for path, value, _ in step_counts(policy) if value > 1}
    changed = configs != [config_of(policy) for policy in search.stopping]
    return {"search.stopping": canonical_json(configs)} if changed else {}


def _longest(space: DrawnSpace) -> int:
    """Return the most steps of the trials that are looked at."""
    return max(trial.config["training"]["steps"] for trial in draw_trials(space, _DRAWS))


def _cut_counts(space: DrawnSpace, share: float) -> Cut:
    """Cut the step counts in the trials of one space; drawn lengths become the longest of them."""
    rows = {row.path: row for row in space.describe()}
    chosen = [path for path, row in rows.items() if row.level is not Level.CONSTANT]
    counts = {path: count for trial in draw_trials(space, _DRAWS) for path, *count in _counts(trial.config)}
    values = {_STEPS: str(_scale(_longest(space), share))}
    kept: list[str] = []
    for path, (value, least) in counts.items():
        row = rows.get(path)
        is_drawn = row is not None and row.level is not Level.CONSTANT
        if path == _STEPS or not (is_drawn or value > 1):
            continue
        if any(path.startswith(f"{option}.") for option in chosen) or (row and row.condition):
            kept.append(path)
        elif row and is_drawn:
            values[path] = f'"max({least}, round({share!r} * ({_as_expression(row.node)})))"'
        else:
            values[path] = str(_scale(value, share))
    return Cut(overrides=values, kept=tuple(kept))


def _as_expression(node: Node) -> str:
    """Return a value as an expression, even if it is written as `{uniform: [0, 100]}`."""
    if not isinstance(node.content, Mapping):
        return str(node.content)
    [(kind, arguments)] = node.content.items()
    assert isinstance(arguments.content, tuple), "a draw in this form has a list"
    return f"{kind}({', '.join(map(_as_expression, arguments.content))})"


def _counts(config: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return path, value and least value of everything in a configuration that counts steps."""
    parts = {name: build(family, config[name]) for name, family in families().items() if name in config}
    parts["training"] = Training(**config["training"])
    return [count for name, part in parts.items() for count in step_counts(part, name)]


def _scale(count: int, share: float) -> int:
    """Cut a number of steps in proportion; at least one is left."""
    return max(1, round(count * share))
