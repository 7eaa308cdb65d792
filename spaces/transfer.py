"""A transfer: architectures found on each of several tasks, and every one of them tried on each task.

Stage one is a search on each task; the best trial's *architecture*, what stands at chosen paths of its configuration
and what it learned there, is carried to stage two, where it is trained on every task beside the baseline, with the
same seeds. Source: paper 002, sections 2 and 3.2.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from random import Random
from typing import Any, NamedTuple, final

from spaces.grammar.formulas import CoordinateOf, Draw
from spaces.grammar.sections import Families
from spaces.plugins import HoldsSplines
from spaces.program import complete_config
from spaces.records import LearnedSpline, Scalar, StoredTrial, Trial
from spaces.seeds import trial_seed
from spaces.settings import Search
from spaces.space import DrawnSpace, Space

BASELINE = "baseline"
"""The source of trials in stage two that are trained as their task's own space has it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """One task of a transfer: how architectures are found on it, and how it is trained in stage two."""

    name: str
    searched: DrawnSpace | None
    """Stage one: the task's own space with the architecture's distributions in it; None: nothing is found here."""
    baseline: DrawnSpace
    """Stage two without an architecture."""
    is_target: bool
    """Whether architectures are tried here."""


class StageOne(NamedTuple):
    """Stage one: trial `number` of the search on a domain."""

    domain: int
    number: int


class StageTwo(NamedTuple):
    """Stage two: what was found on `source` (None: the baseline) as a form, on `target` with the seed of `pair`."""

    source: int | None
    form: str
    target: int
    pair: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TransferSpace(Space):
    """Trials 0, 1, .. are the searches of stage one, domain by domain; then come the baseline and the sources, form
    by form, on every target. `search.trials` is the number of both.
    """

    domains: Sequence[Domain]
    paths: Sequence[str]
    """What an architecture is: dotted paths of a configuration."""
    forms: Sequence[str]
    """Forms of what was learned, each tried (`list_forms`)."""
    tried: int
    """Trials of stage one on each domain that has one."""
    pairs: int
    """Trials of each source on each target."""
    families: Families

    @cached_property
    def sources(self) -> Sequence[int]:
        """The domains that architectures are found on."""
        return [number for number, domain in enumerate(self.domains) if domain.searched]

    @cached_property
    def targets(self) -> Sequence[int]:
        """The domains that they are tried on."""
        return [number for number, domain in enumerate(self.domains) if domain.is_target]

    @property
    def planned(self) -> int:
        """Trials of both stages."""
        rows = 1 + len(self.sources) * len(self.forms)
        return self.tried * len(self.sources) + rows * len(self.targets) * self.pairs

    def stage_of(self, number: int) -> StageOne | StageTwo:
        """Return the part of the study that a trial number belongs to."""
        first = self.tried * len(self.sources)
        if number < first:
            source, own = divmod(number, self.tried)
            return StageOne(self.sources[source], own)
        rest, pair = divmod(number - first, self.pairs)
        row, target = divmod(rest, len(self.targets))
        if row == 0:
            return StageTwo(None, self.forms[0], self.targets[target], pair)
        source, form = divmod(row - 1, len(self.forms))
        return StageTwo(self.sources[source], self.forms[form], self.targets[target], pair)

    @property
    def tells_best(self) -> bool:
        return len({domain.baseline.search.objective for domain in self.domains}) == 1

    @property
    def needs_outcomes(self) -> bool:
        return True

    def search_of(self, number: int) -> Search:
        stage = self.stage_of(number)
        domain = stage.domain if isinstance(stage, StageOne) else stage.target
        return self.domains[domain].baseline.search

    def sample(self, number: int, coordinate_of: CoordinateOf) -> Trial:
        """Trial `number` with these coordinates; in stage two that of the baseline with the same task and seed."""
        stage = self.stage_of(number)
        if isinstance(stage, StageTwo):
            base = self.domains[stage.target].baseline.sample(stage.pair, coordinate_of)
            return self._renumber_pair(number, stage, base)
        searched = self.domains[stage.domain].searched
        assert searched, "a domain with trials of stage one has a search"
        return self.renumber(stage.domain, searched.sample(stage.number, coordinate_of))

    def renumber(self, domain: int, trial: Trial) -> Trial:
        """Return a trial of a domain's own search as the study numbers it."""
        number = self.sources.index(domain) * self.tried + trial.number
        params = {"transfer.task": self.domains[domain].name, **trial.params}
        return replace(trial, number=number, group=domain, seed=trial_seed(self.search.seed, number), params=params)

    def carry(self, number: int, found: Trial | None, learned: Sequence[LearnedSpline]) -> Trial:
        """Return a trial of stage two with the architecture of a trial of stage one (None: the baseline).

        What the space draws beside the architecture is drawn by target and pair, so that sources differ in nothing
        else. Raises SpaceError or PluginError if the target cannot have it.
        """
        stage = self.stage_of(number)
        assert isinstance(stage, StageTwo), "an architecture is carried to stage two"
        key = f"{self.search.seed}/{stage.target}/{stage.pair}"
        base = self.domains[stage.target].baseline.sample(stage.pair, partial(_draw_coordinate, key))
        trial = self._renumber_pair(number, stage, base)
        if found is None:
            return trial
        config = dict(found.config)
        for section, family in self.families.items():
            if isinstance(family, HoldsSplines):
                config[section] = family.with_splines(config[section], learned, stage.form)
        return self._with_architecture(trial, found.number, config)

    def restore(self, lineage: Sequence[StoredTrial]) -> Trial:
        stored = lineage[-1]
        stage = self.stage_of(stored.number)
        trial = super().restore(lineage)
        source = stored.params.get("architecture.trial")
        if isinstance(stage, StageOne) or stage.source is None or not isinstance(source, int):
            return trial
        return self._with_architecture(trial, source, stored.config)

    def check(self, samples: int = 200) -> None:
        """Check the spaces of all domains; the architectures are known only once they are found."""
        for domain in self.domains:
            domain.baseline.check(samples)
            if domain.searched:
                domain.searched.check(samples)

    def _renumber_pair(self, number: int, stage: StageTwo, base: Trial) -> Trial:
        """Return the baseline's trial as the study numbers it; its seed is that of all sources on the same target."""
        target = self.targets.index(stage.target)
        shared = len(self.sources) * self.tried + target * self.pairs + stage.pair
        facts: dict[str, Scalar] = {
            "architecture.source": self._source_name(stage),
            "transfer.target": self.domains[stage.target].name,
            "pair": stage.pair,
        }
        return replace(
            base,
            number=number,
            group=len(self.domains) + stage.target,
            seed=trial_seed(self.search.seed, shared),
            params=facts | dict(base.params),
        )

    def _source_name(self, stage: StageTwo) -> str:
        if stage.source is None:
            return BASELINE
        name = self.domains[stage.source].name
        return name if stage.form == list_forms(self.families)[0] else f"{name} {stage.form}"

    def _with_architecture(self, trial: Trial, source: int, given: Mapping[str, Any]) -> Trial:
        """Return the trial with what stands at the architecture's paths of a configuration."""
        config = copy.deepcopy(dict(trial.config))
        for path in self.paths:
            _put(config, path, _get(given, path))
        config, structure = complete_config(config, self.families)
        params = {**trial.params, "architecture.trial": source}
        return replace(trial, params=params, config=config, structure=structure, architecture_trial=source)


def list_forms(families: Families) -> Sequence[str]:
    """List the forms that a learned part of a configuration can take; the form as learned comes first."""
    holding = (family for family in families.values() if isinstance(family, HoldsSplines))
    return [form for family in holding for form in family.spline_forms] or ["as learned"]


def _draw_coordinate(key: str, draw: Draw) -> float:
    return Random(f"{key}/{draw.name}").random()


def _get(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for step in path.split("."):
        value = value[step]
    return value


def _put(config: dict[str, Any], path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        config = config[step]
    config[last] = copy.deepcopy(value)
