"""An experiment: named arms, each trained from the same seeds and evaluated on the same data.

Every arm is the file's space with some paths set, and its sampler draws its configurations; each is
trained from every seed. `random` gives draws of the same name the same coordinates in all arms, and
`qmc` and `grid` do so if the arms have the same draws. The best of each arm may be confirmed: trained
again from fresh seeds, which had no part in the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, final

from spaces.grammar.formulas import CoordinateOf
from spaces.records import Scalar, Trial
from spaces.seeds import evaluation_seed, trial_seed
from spaces.settings import Direction
from spaces.space import DrawnSpace, Space, divide_trials

ARM = "arm"
"""The param that names a trial's arm."""
SEED = "seed"
"""The param that numbers the experiment's seeds, 0, 1, ...; those of confirmations come last."""
CONFIGURATION = "configuration"
"""The param that numbers an arm's configurations."""
RANK = "confirmed rank"
"""The param of a confirmation: 0 for the arm's best configuration."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """One alternative of an experiment."""

    name: str
    space: DrawnSpace
    """Its `search.trials` is the number of its configurations."""
    paths: tuple[str, ...]
    """The paths that it sets itself."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about two arms, made before they are trained, and how it will be tested."""

    arm: str
    """The arm that is said to be better."""
    than: str
    """The arm that it is compared with."""
    direction: Direction
    metric: str
    """METRIC/VARIANT or METRIC/VARIANT/CONDITION."""
    at: Literal["best", "last"]
    """The validation whose value counts; of a metric that is not the objective the last one."""
    difference: float
    """The smallest difference of interest, above 0, in units of the metric."""
    seeds: int
    """Seeds that both arms are compared by."""
    fresh: bool
    """True for seeds of confirmations, which had no part in choosing the configurations."""
    test: Literal["paired"] = "paired"
    """The tests of arms over equal seeds (`search.analysis.arms.comparison.compare_arms`)."""
    correction: Literal["holm", "bh"] = "holm"
    """The correction of p over the claims of a study."""
    on: Literal["validation", "test"] = "validation"
    """The sets whose values decide. Those of test sets are sealed until the study is revealed."""

    def __str__(self) -> str:
        """Return `ssa has a higher accuracy/raw than softmax (0.02 or more is of interest)`."""
        word = "lower" if self.direction == "minimize" else "higher"
        where = " on test sets" if self.on == "test" else ""
        difference = f"{self.difference:g} or more is of interest"
        return f"{self.arm} has a {word} {self.metric}{where} than {self.than} ({difference})"

    def to_json(self) -> dict[str, Any]:
        """Return the claim as JSON values, without `on` for validation, as in stored claims."""
        values = asdict(self)
        if self.on == "validation":
            del values["on"]
        return values


class Tried(NamedTuple):
    """A configuration of an arm with a seed."""

    arm: int
    configuration: int
    seed: int


class Confirmed(NamedTuple):
    """The configuration of this rank of an arm, with a fresh seed."""

    arm: int
    rank: int
    seed: int


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ExperimentSpace(Space):
    """A space of all arms' configurations from all seeds, then of the confirmations."""

    arms: Sequence[Arm]
    """The first is the baseline."""
    seeds: int
    """Seeds that each configuration is trained from."""
    confirmed: int = 0
    """Configurations of each arm that are confirmed, the best ones."""
    fresh_seeds: int = 0
    """Seeds that each of these is trained from."""
    claims: tuple[Claim, ...] = ()

    @property
    def is_tested(self) -> bool:
        """True if a claim is decided on test sets."""
        return any(claim.on == "test" for claim in self.claims)

    @property
    def tells_best(self) -> bool:
        return super().tells_best and not self.claims

    @property
    def configurations(self) -> int:
        """Configurations of each arm; a grid may have fewer."""
        return self.arms[0].space.search.trials

    @property
    def tried(self) -> int:
        """Trials before the confirmations."""
        return self.configurations * len(self.arms) * self.seeds

    @property
    def planned(self) -> int:
        """Trials of the experiment."""
        return self.tried + self.confirmations

    @property
    def confirmations(self) -> int:
        """Trials that confirm the best configurations of all arms."""
        return len(self.arms) * self.confirmed * self.fresh_seeds

    def trials_setting(self, planned: int) -> int:
        arms, each = len(self.arms), len(self.arms) * self.seeds
        made = f"{arms:,} arm{'s' * (arms > 1)} and {self.seeds:,} seed{'s' * (self.seeds > 1)}"
        factors = f"{made} make {each:,} trials of each configuration"
        return divide_trials(planned, each, self.confirmations, factors=factors, rest="confirmations")

    @property
    def needs_outcomes(self) -> bool:
        return self.confirmed > 0

    def describe_size(self) -> str:
        arms, configurations = len(self.arms), self.configurations
        factors = [f"{arms:,} arm{'s' * (arms > 1)}", f"{self.seeds:,} seed{'s' * (self.seeds > 1)}"]
        if configurations > 1:
            factors.insert(1, f"{configurations:,} configurations")
        size = f"{self.planned:,} trials: {' x '.join(factors)}"
        if not self.confirmed:
            return size
        return f"{size}, the best {self.confirmed:,} of each arm confirmed from {self.fresh_seeds:,} fresh seeds"

    def part_of(self, number: int) -> Tried | Confirmed:
        """Return the part of the experiment that a trial number belongs to."""
        if number < self.tried:
            rest, seed = divmod(number, self.seeds)
            configuration, arm = divmod(rest, len(self.arms))
            return Tried(arm, configuration, seed)
        rest, seed = divmod(number - self.tried, self.fresh_seeds)
        rank, arm = divmod(rest, len(self.arms))
        return Confirmed(arm, rank, seed)

    def trains_to_end(self, number: int) -> bool:
        """Return True for confirmations, which alone compare the arms."""
        return number >= self.tried

    def sample(self, number: int, coordinate_of: CoordinateOf) -> Trial:
        """Return trial `number` with these coordinates; a confirmation has its configuration's."""
        part = self.part_of(number)
        index = part.configuration if isinstance(part, Tried) else part.rank
        trial = self.arms[part.arm].space.sample(index, coordinate_of)
        search = self.search
        groups = -(-self.configurations // search.group)
        facts: dict[str, Scalar] = {ARM: self.arms[part.arm].name}
        if isinstance(part, Tried):
            group, seed = part.arm * groups + trial.group, part.seed
            facts[CONFIGURATION] = part.configuration
        else:
            group = len(self.arms) * groups + part.arm * self.confirmed + part.rank
            seed = self.seeds + part.seed
            facts[RANK] = part.rank
        return replace(
            trial,
            number=number,
            group=group,
            seed=trial_seed(search.seed, seed),
            evaluation_seed=evaluation_seed(search.seed),
            params={**facts, SEED: seed, **trial.params},
            tested=self.is_tested,
        )

    def pad(self, trial: Trial, pad: bool) -> Trial:
        return self.arms[self.part_of(trial.number).arm].space.pad(trial, pad)

    def check(self, samples: int = 200) -> None:
        for arm in self.arms:
            arm.space.check(samples)
