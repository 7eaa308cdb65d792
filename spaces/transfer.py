"""The space of a transfer study: architectures found on several tasks, each trained on every task.

Stage one is a search on each source task. Its best trial's *architecture* is its configuration at
chosen paths, with the splines that it learned there. Stage two trains the architectures on every
target task beside the baseline, with the same seeds. Source: paper 002, sections 2 and 3.2.

Legend: a *domain* is one task of the transfer; a *form* is a way in which learned splines stand in
another trial (`list_forms`); a *pair* numbers the trials of equal architecture and target, each
with a seed of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import getitem
from random import Random
from typing import Any, NamedTuple, final

from spaces.grammar.formulas import CoordinateOf, Level
from spaces.grammar.sections import Families
from spaces.plugins.protocols import HoldsSplines
from spaces.program import complete_config, facts_of_config
from spaces.records import LearnedSpline, Scalar, StoredTrial, Trial
from spaces.seeds import trial_seed
from spaces.settings import Search
from spaces.space import DrawnSpace, Space, divide_trials

TASK = "transfer.task"
"""The param that names the source task of a trial of stage one."""
FINDER = "architecture.trial"
"""The param of a trial of stage two: the number of the trial that found its architecture."""
BASELINE = "baseline"
"""The source of stage-two trials without a found architecture: the target's own space."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Domain:
    """One task of a transfer, with its spaces for the two stages."""

    name: str
    searched: DrawnSpace | None
    """Stage one: the task's space with draws of the architecture; None if it is no source."""
    baseline: DrawnSpace
    """Stage two: the task's space as it is without a found architecture."""
    is_target: bool
    """True if architectures are trained on this task in stage two."""


class StageOne(NamedTuple):
    """A trial of stage one: trial `number` of the search on a domain, given by its index."""

    domain: int
    number: int


class StageTwo(NamedTuple):
    """A trial of stage two: the architecture of `source` (None: the baseline) on `target`.

    Both are indices of domains. Sources and forms have the same seed on one `target` and `pair`.
    """

    source: int | None
    form: str
    target: int
    pair: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class TransferSpace(Space):
    """The space of both stages; `search.trials` is the number of their trials.

    Trials 0, 1, ... are the searches of stage one, domain by domain. Then come the rows of stage
    two: first the baseline, then each source in each form. A row goes through the targets, a target
    through its pairs.
    """

    domains: Sequence[Domain]
    paths: Sequence[str]
    """The dotted paths of a configuration that make up an architecture."""
    forms: Sequence[str]
    """The forms in which stage two trains each source, some of `list_forms`."""
    tried: int
    """Trials of stage one on each source."""
    pairs: int
    """Trials of each row of stage two on each target."""
    families: Families

    @cached_property
    def sources(self) -> Sequence[int]:
        """Indices of the domains on which architectures are found."""
        return [number for number, domain in enumerate(self.domains) if domain.searched]

    @cached_property
    def targets(self) -> Sequence[int]:
        """Indices of the domains on which stage two trains them."""
        return [number for number, domain in enumerate(self.domains) if domain.is_target]

    @property
    def planned(self) -> int:
        """The number of trials of both stages."""
        return self.tried * len(self.sources) + self._stage_two

    @property
    def _stage_two(self) -> int:
        rows = 1 + len(self.sources) * len(self.forms)
        return rows * len(self.targets) * self.pairs

    def trials_setting(self, planned: int) -> int:
        sources = len(self.sources)
        factors = f"each of {sources:,} source task{'s' * (sources > 1)} has as many trials in stage one"
        return divide_trials(planned, sources, self._stage_two, factors=factors, rest="trials of stage two")

    def stage_of(self, number: int) -> StageOne | StageTwo:
        """Return the part of the study that a trial number belongs to."""
        first_of_stage_two = self.tried * len(self.sources)
        if number < first_of_stage_two:
            index, search_number = divmod(number, self.tried)
            return StageOne(self.sources[index], search_number)
        rest, pair = divmod(number - first_of_stage_two, self.pairs)
        row, column = divmod(rest, len(self.targets))
        if row == 0:
            return StageTwo(None, self.forms[0], self.targets[column], pair)
        index, form = divmod(row - 1, len(self.forms))
        return StageTwo(self.sources[index], self.forms[form], self.targets[column], pair)

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
        """Return trial `number` with these coordinates; in stage two the baseline's (`carry`)."""
        stage = self.stage_of(number)
        if isinstance(stage, StageTwo):
            base = self.domains[stage.target].baseline.sample(stage.pair, coordinate_of)
            return self._renumber_pair(number, stage, base)
        searched = self.domains[stage.domain].searched
        assert searched, "a domain with trials of stage one has a search"
        return self.renumber(stage.domain, searched.sample(stage.number, coordinate_of))

    def renumber(self, domain: int, trial: Trial) -> Trial:
        """Return a trial of a domain's search with its number, group and seed in the study."""
        number = self.sources.index(domain) * self.tried + trial.number
        params = {TASK: self.domains[domain].name, **trial.params}
        seed = trial_seed(self.search.seed, number)
        return replace(trial, number=number, group=domain, seed=seed, params=params)

    def carry(self, number: int, best: Trial | None, learned: Sequence[LearnedSpline]) -> Trial:
        """Return a trial of stage two with the architecture and the splines of `best`, or of none.

        All other draws follow from target and pair alone, so that sources differ in nothing else.
        Raises SpaceError or PluginError if the target cannot have the architecture.
        """
        stage = self.stage_of(number)
        assert isinstance(stage, StageTwo), "an architecture is carried to stage two"
        key = f"{self.search.seed}/{stage.target}/{stage.pair}"
        base = self.domains[stage.target].baseline.sample(
            stage.pair, lambda draw: Random(f"{key}/{draw.name}").random()
        )
        trial = self._renumber_pair(number, stage, base)
        if best is None:
            return trial
        config = dict(best.config)
        for section, family in self.families.items():
            if isinstance(family, HoldsSplines):
                config[section] = family.with_splines(config[section], learned, stage.form)
        return self._with_architecture(trial, best.number, config)

    def restore(self, lineage: Sequence[StoredTrial]) -> Trial:
        stored = lineage[-1]
        stage = self.stage_of(stored.number)
        trial = super().restore(lineage)
        finder = stored.params.get(FINDER)
        if isinstance(stage, StageOne) or stage.source is None or not isinstance(finder, int):
            return trial
        # The draws alone do not give the architecture.
        return self._with_architecture(trial, finder, stored.config)

    def check(self, samples: int = 200) -> None:
        """Check the spaces of all domains; architectures are known only after stage one."""
        for domain in self.domains:
            domain.baseline.check(samples)
            if domain.searched:
                domain.searched.check(samples)

    def _renumber_pair(self, number: int, stage: StageTwo, base: Trial) -> Trial:
        """Return a baseline trial with the study's number and its target's and pair's seed."""
        column = self.targets.index(stage.target)
        baseline_number = len(self.sources) * self.tried + column * self.pairs + stage.pair
        source = BASELINE if stage.source is None else self.domains[stage.source].name
        if stage.source is not None and stage.form != list_forms(self.families)[0]:
            source = f"{source} {stage.form}"  # the splines are not as they were learned
        facts: dict[str, Scalar] = {
            "architecture.source": source,
            "transfer.target": self.domains[stage.target].name,
            "pair": stage.pair,
        }
        return replace(
            base,
            number=number,
            group=len(self.domains) + stage.target,
            seed=trial_seed(self.search.seed, baseline_number),
            params=facts | dict(base.params),
        )

    def _with_architecture(self, trial: Trial, finder: int, donor: Any) -> Trial:
        """Return the trial with the architecture of `donor`, a configuration of `finder`."""
        config: Any = copy.deepcopy(dict(trial.config))
        for path in self.paths:
            *sections, last = path.split(".")
            setting = reduce(getitem, sections, donor)[last]
            reduce(getitem, sections, config)[last] = copy.deepcopy(setting)
        config, structure = complete_config(config, self.families)
        changed = {path.partition(".")[0] for path in self.paths}
        before, after = (
            facts_of_config({name: sections[name] for name in changed}, self.families)
            for sections in (trial.config, config)
        )
        params = {
            path: value
            for path, value in trial.params.items()
            if path not in before and not self._is_architecture(path)
        }
        params |= {path: value for path in self._drawn_paths if (value := _value_at(config, path)) is not None}
        params |= {**after, FINDER: finder}
        return replace(trial, params=params, config=config, structure=structure, architecture_trial=finder)

    @cached_property
    def _drawn_paths(self) -> Sequence[str]:
        """The paths of an architecture that a task draws, in either stage."""
        spaces = (space for domain in self.domains for space in (domain.searched, domain.baseline) if space)
        drawn = (row.path for space in spaces for row in space.rows if row.level is not Level.CONSTANT)
        return list(dict.fromkeys(filter(self._is_architecture, drawn)))

    def _is_architecture(self, path: str) -> bool:
        return any(f"{path}.".startswith(f"{above}.") for above in self.paths)


def _value_at(config: Mapping[str, Any], path: str) -> Scalar | None:
    """Return the value at a path as `params` have it, a plug-in's name; None if there is none."""
    value: Any = config
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("name")
    return value if isinstance(value, int | float | str) else None


def list_forms(families: Families) -> Sequence[str]:
    """List the forms of learned splines in another trial; first the splines as learned."""
    holding = (family for family in families.values() if isinstance(family, HoldsSplines))
    return [form for family in holding for form in family.spline_forms] or ["as learned"]
