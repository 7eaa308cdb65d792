"""A compiled space: runs the coordinates of one trial through all of its formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from spaces.errors import SpaceError
from spaces.grammar.formulas import CoordinateOf, Formula, Level, Scope, scope_without_draws
from spaces.messages import number
from spaces.plugins import build, canonical_json, config_of, facts, pad_sizes, rules, structure_of
from spaces.records import Scalar
from spaces.settings import Training

_Made = TypeVar("_Made")

# Groups whose shared sections are kept; packs are refilled from a few groups at a time.
_CACHED_GROUPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A trial as its coordinates determine it; see the fields of `spaces.records.Trial`."""

    draws: dict[str, float]
    params: dict[str, Scalar]
    config: dict[str, Any]
    structure: str
    values: dict[str, float]
    """The values of the blocks `group` and `trial`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """The part of a group's trials that its named values determine."""

    params: dict[str, Scalar]
    sections: dict[str, Any]
    config: dict[str, Any]
    structures: tuple[dict[str, str], dict[str, str]]
    """Section -> canonical JSON of the sections of one structure in the whole group, of trials not
    padded and of padded ones; completed by its trials."""


class Program:
    """The formulas of a space in the order of their evaluation.

    `group` and `trial` are the named values. Every one is computed for every trial, used or not: a
    draw that matters only under a choice belongs inside that choice. `sections` are task, model,
    optimizer, averaging, learning and training; `pads` decides from their objects whether the
    trial's sizes are padded.
    """

    def __init__(
        self,
        group: Mapping[str, Formula],
        trial: Mapping[str, Formula],
        sections: Mapping[str, Formula],
        pads: Callable[[Mapping[str, Any]], bool],
    ) -> None:
        self._pads = pads
        self._group = [(name, formula.evaluate) for name, formula in group.items()]
        self._trial = [(name, formula.evaluate) for name, formula in trial.items()]
        trial_sections = {name: formula for name, formula in sections.items() if formula.level is Level.TRIAL}
        self._own_sections = [(name, formula.evaluate) for name, formula in trial_sections.items()]
        shared = {name: formula for name, formula in sections.items() if name not in trial_sections}
        self._shared_sections = [(name, formula.evaluate) for name, formula in shared.items()]
        self._restructured = {key for key, formula in sections.items() if formula.structure is Level.TRIAL}
        self._shared = lru_cache(maxsize=_CACHED_GROUPS)(self._share)

    def run(self, coordinate_of: CoordinateOf, pad: bool | None = None) -> Resolved:
        """Return all that the coordinates determine; SpaceError, with named values, for a fault.

        `pad` takes the place of the space's own decision, if it is given.
        """
        return self._naming_values(lambda scope: self._run(scope, pad), coordinate_of)

    def check(self, coordinate_of: CoordinateOf) -> None:
        """Raise as `run` does for these coordinates; takes half of its time."""
        self._naming_values(self._evaluate, coordinate_of)

    def _naming_values(self, act: Callable[[Scope], _Made], coordinate_of: CoordinateOf) -> _Made:
        scope = Scope(coordinate_of, {})
        try:
            return act(scope)
        except SpaceError as error:
            shown = ", ".join(f"${name} = {number(value)}" for name, value in scope.values.items())
            raise SpaceError(f"{error} (where {shown})" if shown else str(error)) from error

    def _run(self, scope: Scope, pad: bool | None) -> Resolved:
        shared, trial_sections = self._evaluate(scope)
        config = shared.config | {name: _to_config(section) for name, section in trial_sections.items()}
        sections = shared.sections | trial_sections
        if pad is None:
            pad = self._pads(sections)
        config["training"] = {**config["training"], "pad_shapes": pad}
        # The structure is the canonical JSON of {section: structure}, joined from sections' texts.
        known = shared.structures[pad]
        texts = dict(known)
        for name in sections.keys() - known.keys():
            texts[name] = canonical_json(_structure_of(sections[name], pad))
            if name not in self._restructured:
                known[name] = texts[name]
        return Resolved(
            draws=scope.draws,
            params=shared.params | scope.params | _collect_facts(trial_sections),
            config=config,
            structure="{" + ",".join([f'"{name}":{texts[name]}' for name in sorted(texts)]) + "}",
            values=scope.values,
        )

    def _evaluate(self, scope: Scope) -> tuple[_Shared, dict[str, Any]]:
        """Return the sections of the group and those of the trial, with every rule checked."""
        for name, evaluate in self._group:
            scope.values[name] = evaluate(scope)
        shared = self._shared(tuple(scope.values.items()))
        for name, evaluate in self._trial:
            scope.values[name] = evaluate(scope)
        return shared, {name: evaluate(scope) for name, evaluate in self._own_sections}

    def _share(self, values: tuple[tuple[str, float], ...]) -> _Shared:
        scope = scope_without_draws(dict(values))
        sections = {name: evaluate(scope) for name, evaluate in self._shared_sections}
        return _Shared(
            params=scope.params | _collect_facts(sections),
            sections=sections,
            config={name: _to_config(section) for name, section in sections.items()},
            structures=({}, {}),
        )


def complete_config(config: Mapping[str, Any], families: Mapping[str, type]) -> tuple[dict[str, Any], str]:
    """Return a configuration's canonical form and structure; PluginError if it breaks a rule."""
    plugins = {name: part for name, part in config.items() if name != "training"}
    sections = {name: build(families[name], part, name) for name, part in plugins.items()}
    sections["training"] = Training(**config["training"])
    pad = config["training"]["pad_shapes"]
    structure = {name: _structure_of(section, pad) for name, section in sections.items()}
    canonical = {name: _to_config(section) for name, section in sections.items()}
    return canonical, canonical_json(structure)


def facts_of_config(config: Mapping[str, Any], families: Mapping[str, type]) -> dict[str, Scalar]:
    """Return the facts of a configuration's plug-ins; PluginError if one breaks a rule."""
    return _collect_facts({name: build(families[name], part, name) for name, part in config.items()})


def _collect_facts(sections: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return facts that follow from sections' fields, as `task.generalisation_gap`."""
    by_section = {name: facts(section) for name, section in sections.items()}
    return {f"{name}.{fact}": value for name, values in by_section.items() for fact, value in values.items()}


def _to_config(section: object) -> dict[str, Any]:
    if isinstance(section, Training):
        return {field: getattr(section, field) for field in rules(Training)}
    return config_of(section)


def _structure_of(section: object, pad: bool) -> dict[str, Any]:
    if isinstance(section, Training):
        known = rules(Training).items()
        shared = {field: getattr(section, field) for field, rule in known if rule.structural}
        return {**shared, "pad_shapes": pad}
    return structure_of(pad_sizes(section) if pad else section)
