"""A round of the loop: edits become arms of one study, and the study's claims decide which of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import yaml

import graft
from search.analysis.statistics.power import count_seeds, find_power
from search.analysis.statistics.verdicts import SURE

START = Path(__file__).with_name("start.yaml")
TRIES = 20
"""Proposals for each edit of a round, of which all but one may be there already."""
KEPT = "kept"
"""The arm of the recipe that stands; every edit is compared with it."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """A change of a recipe: values at paths of the space, and plug-ins from outside that these name."""

    why: str
    """A description of the change in a few words."""
    kind: str = "edit"
    """Edits of one kind are counted together in what the loop says at its end."""
    set: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Path of the space -> its value."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name of a plug-in -> the text of its file."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The present recipe: values at paths of the space, and the files of the plug-ins that they name."""

    set: Mapping[str, Any] = field(default_factory=dict[str, Any])
    files: Mapping[str, str] = field(default_factory=dict[str, str])

    def apply(self, edit: Edit) -> Recipe:
        """Return the recipe with an edit made; a path takes the place of those below it."""
        kept = {path: value for path, value in self.set.items() if not _overlaps(path, edit.set)}
        return Recipe(set={**kept, **edit.set}, files={**self.files, **edit.files})


def _overlaps(path: str, paths: Mapping[str, Any]) -> bool:
    return any(f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.") for other in paths)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan, fixed before the first round: edits of a round, seeds of each, and the difference that matters."""

    edits: int
    seeds: int
    difference: float
    """The smallest gain of interest, in units of the objective."""

    @classmethod
    def of_spread(cls, spread: float, difference: float, edits: int) -> Plan:
        """Return the plan with the fewest seeds that find `difference` four times in five.

        `spread`: standard deviation of the paired difference over seeds, as `search advise` says it. The claims of a
        round are corrected together, so that more edits need more seeds.
        """
        return cls(edits=edits, seeds=count_seeds(spread, difference, SURE / edits), difference=difference)

    def power(self, spread: float) -> float:
        """Return the probability that an edit whose gain is `difference` is confirmed, with this spread."""
        return find_power(self.seeds, spread, self.difference, SURE / self.edits)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one edit."""

    round: int
    edit: Edit
    verdict: str
    """The verdict of its claim: confirmed, refuted or undecided."""
    kept: bool
    """True if it is part of the recipe from then on: of several confirmed edits the one of the largest gain."""
    gain: float
    low: float
    high: float
    """95 % interval of the gain."""
    power: float
    """That the claim had, by the spread of its own seeds."""
    better_on_one_seed: bool
    """True if the first seed alone has it better: what a loop without seeds would keep."""


Propose = Callable[[Mapping[str, Any]], Edit]
"""Answers an edit of the recipe, given the history as JSON values: `recipe`, and `outcomes` so far."""


@dataclass
class Loop:
    """Rounds of edits of one recipe, each a study of its own in one database."""

    database: str | Path
    plan: Plan
    recipe: Recipe = field(default_factory=Recipe)
    space: str | Path = START
    seed: int = 0
    run: graft.Run = field(default_factory=lambda: graft.Run(progress=False))
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    rounds: int = 0

    def history(self) -> dict[str, Any]:
        """Return what a proposer may know, as JSON values."""
        return {"recipe": asdict(self.recipe), "outcomes": [asdict(outcome) for outcome in self.outcomes]}

    def round(self, propose: Propose) -> list[Outcome]:
        """Train one round of proposed edits, keep the best of those that are confirmed, and return what came out."""
        outcomes = self.judge(self.ask(propose))
        self.outcomes += outcomes
        self.rounds += 1
        for outcome in outcomes:
            if outcome.kept:
                self.recipe = self.recipe.apply(outcome.edit)
        return outcomes

    def ask(self, propose: Propose) -> list[Edit]:
        """Return the edits of a round, all different; raises ValueError if the proposer has no others."""
        edits, known = list[Edit](), [self.recipe.set]
        for _ in range(TRIES * self.plan.edits):
            edit = propose({**self.history(), "proposed": [asdict(proposal) for proposal in edits]})
            changed = self.recipe.apply(edit).set
            if changed not in known:  # two arms that set the same are one
                edits.append(edit)
                known.append(changed)
            if len(edits) == self.plan.edits:
                return edits
        raise ValueError(f"{TRIES * self.plan.edits} proposals had {len(edits)} different edits of {self.plan.edits}")

    def judge(self, edits: Sequence[Edit]) -> list[Outcome]:
        """Train edits beside the recipe that stands, from seeds of their own, and decide their claims."""
        arms = [f"edit{index}" for index in range(len(edits))]
        recipes = {KEPT: self.recipe, **{arm: self.recipe.apply(edit) for arm, edit in zip(arms, edits, strict=True)}}
        study = self.train(f"loop-{self.rounds}", recipes, self.seed + self.rounds)
        results = {result.claim.arm: result for result in study.claims().results}
        confirmed = {arm: result.gain for arm, result in results.items() if result.verdict == "confirmed"}
        best = max(confirmed, key=confirmed.__getitem__, default=None)
        first = read_first_seed(study)
        return [
            Outcome(
                round=self.rounds,
                edit=edit,
                verdict=results[arm].verdict,
                kept=arm == best,
                **{name: getattr(results[arm], name) for name in ("gain", "low", "high", "power")},
                better_on_one_seed=first[arm] < first[KEPT],
            )
            for arm, edit in zip(arms, edits, strict=True)
        ]

    def train(self, name: str, recipes: Mapping[str, Recipe], seed: int) -> graft.Study:
        """Train recipes as the arms of a study, with a claim that each of them is better than the first."""
        first, *others = recipes
        content = yaml.safe_load(Path(self.space).read_text())
        content["study"] = name
        content["arms"] = {arm: dict(recipe.set) for arm, recipe in recipes.items()}
        content["seeds"] = self.plan.seeds
        content["claim"] = [{"arm": arm, "than": first, "difference": self.plan.difference} for arm in others]
        content["search"]["seed"] = seed
        files = {file: text for recipe in recipes.values() for file, text in recipe.files.items()}
        for recipe in recipes.values():
            if changed := [file for file, text in recipe.files.items() if text != files[file]]:
                raise ValueError(f"file {changed[0]!r} has two texts in one round: give the edited one another name")
        space = graft.Space(content, [graft.Plugin(file, text) for file, text in files.items()])
        return graft.launch(space, database=self.database, run=self.run)

    def learned(self) -> list[str]:
        """Return what the rounds have shown, a line each: what was kept, and what became of each kind of edit."""
        lines = [
            f"round {outcome.round}: kept {outcome.edit.why}: "
            f"gain {outcome.gain:.3g} ({outcome.low:.3g} to {outcome.high:.3g})"
            for outcome in self.outcomes
            if outcome.kept
        ]
        for kind in dict.fromkeys(outcome.edit.kind for outcome in self.outcomes):
            group = [outcome for outcome in self.outcomes if outcome.edit.kind == kind]
            verdicts = [f"{sum(outcome.verdict == name for outcome in group)} {name}" for name in VERDICTS]
            lucky = sum(outcome.better_on_one_seed for outcome in group)
            lines.append(f"{kind}: {len(group)} edits, {', '.join(verdicts)}; one seed would have kept {lucky}")
        return lines

    def confirm(self, start: Recipe) -> str:
        """Train the first recipe and the last one from fresh seeds, and return the verdict on all that was kept."""
        whole = replace(self, plan=replace(self.plan, edits=1))
        study = whole.train("loop-whole", {"start": start, KEPT: self.recipe}, self.seed + self.rounds)
        return study.claims().sentences()[0]


VERDICTS = ("confirmed", "refuted", "undecided")


def read_first_seed(study: graft.Study) -> dict[str, float]:
    """Return the objective of each arm's first seed, less is better; infinite where the trial has none."""
    status, trials = study.status(), study.trials()
    sign = -1.0 if status.direction == "maximize" else 1.0
    first = trials.filter(trials["params.seed"] == 0).select("params.arm", "objective")
    return {arm: inf if value is None else sign * value for arm, value in first.iter_rows()}
