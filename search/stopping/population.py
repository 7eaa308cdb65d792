"""Population-based training."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, final

from search.stopping import Copy, Monitor, Stopping
from search.stopping._exploration import Exploration
from search.watched_metric import Measure, direction, metric
from spaces.plugins import Examples
from spaces.plugins.fields import knob, size
from spaces.records import Report, Trial
from spaces.settings import Objective

if TYPE_CHECKING:
    from spaces.space import Space


@final
@dataclass(frozen=True, kw_only=True)
class Population(Stopping):
    """Population-based training: bad trials continue from good ones, with changed knobs.

    The trials that train together in a pack are a population. When a trial reports at or after a
    multiple of `every` of its steps, it is compared with the newest costs of all of them. Exploit:
    one of the worst `quantile` is ended as pruned, and in its lane a new trial takes over
    parameters, moments, averages and step counter of one of the best `quantile`, picked at random.
    Explore: each draw of that trial moves (`move`) or is drawn again (`resample`).

    A trial never changes: the copy has a number, a seed, draws and reports of its own, a `parent`
    and a `parent_step`. Trained alone, its ancestors first, it gives the same numbers, and so it
    does after a crash, which costs a copy what it costs any trial: training from step 0. Only a
    trial that stands at its report is copied; where lanes are out of step, a trial to be replaced
    trains on until a good one reports.

    `search.trials` is the number of trials that start from step 0, like `num_samples` of Ray Tune;
    if they do not fit in one pack, they are several populations. Copies are numbered from there on,
    and each takes the lane of a trial that ended, so that as many as started from step 0 reach
    their last step or diverge. Samplers do not learn from copies, whose objective is not owed to
    their draws alone.

    Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017 (truncation
    selection, 4.1.1). There values are perturbed by factors of 0.8 and 1.2. A factor suits a
    learning rate, but of `1 - 10 ** uniform(-8, -1)` it makes one end of the range or the other. So
    here the coordinate of a draw moves by a share of its range, in the scale that the space draws
    in: 0.1 are these factors in the middle of uniform(0, b), and 0.79 and 1.26 on a decade.
    """

    EXAMPLES: ClassVar[Examples] = ({"every": 10},)

    metric: str = metric()
    every: int = size(steps=True)
    """Steps between two comparisons of a trial."""
    quantile: float = knob(0.25, low=0, high=0.5, open_low=True)
    """Share of the population that is replaced, and that is copied; one trial to half of them."""
    move: float = knob(0.1, low=0, high=1)
    """How far a draw moves, up or down, as a share of its range; it is reflected at the ends."""
    resample: float = knob(0.25, low=0, high=1)
    """Probability that a draw is drawn again instead."""
    direction: str = direction()

    @property
    def padding_obstacle(self) -> str | None:
        return "it ranks the trials of a pack against one another, so they must be of one size"

    def begin(self, objective: Objective) -> Monitor:
        measure = Measure.of(self.metric, self.direction, objective)
        exploration = Exploration(move=self.move, resample=self.resample)
        return PopulationMonitor(measure, self.every, self.quantile, exploration)


@dataclass(slots=True)
class _Member:
    cost: float
    round: int
    """The newest multiple of `every` reached, in units of it."""
    compared: int
    """The multiple at which it was last compared."""


class Selection(NamedTuple):
    """Running trials of one pack that are to be replaced, and those that may be copied."""

    losers: Sequence[int] = ()
    parents: Sequence[int] = ()
    """Empty only if there are no losers."""


@final
class PopulationMonitor(Monitor):
    """Population-based training at work. It keeps running trials' newest costs and comparisons."""

    makes_copies = True

    def __init__(self, measure: Measure, every: int, quantile: float, exploration: Exploration) -> None:
        self._measure = measure
        self._every = every
        self._quantile = quantile
        self._exploration = exploration
        self._members: dict[int, _Member] = {}
        self._copied: dict[int, int] = {}
        """Trial -> the last step at which it was copied. If it starts again, it is not replaced
        before that step: its copies need the states up to there."""

    def recall_copied(self, copied: Mapping[int, int]) -> None:
        """Take over, after a restart, which trials were copied and when."""
        self._copied = {**copied}

    def observe(self, reports: Sequence[Report], groups: dict[int, int]) -> set[int]:
        """Note the newest cost of each trial; a trial ends only when a copy takes its lane."""
        for report in reports:
            cost = self._measure.cost(report)
            if cost is not None:
                # A copy starts where its parent was compared; a trial that starts again was
                # compared where it was copied. Either counts as compared up to there.
                before = max(report.step - 1, self._copied.get(report.number, 0)) // self._every
                member = self._members.setdefault(report.number, _Member(cost, 0, before))
                member.cost, member.round = cost, report.step // self._every
        return set()

    def select(self, standing: Collection[int], running: Collection[int]) -> Selection:
        """Return the pack's worst trials that are due for a comparison, and the best that reported.

        `running` is all of one worker's pack, `standing` those of it that are at their last report.
        A trial that is due stays so until a copy takes its lane.
        """
        known = self._members
        ranked = sorted((number for number in running if number in known), key=lambda number: known[number].cost)
        count = min(ceil(self._quantile * len(ranked)), len(ranked) // 2)
        parents = [number for number in ranked[:count] if number in standing]
        worst = ranked[len(ranked) - count :]
        losers = [number for number in worst if known[number].round > known[number].compared]
        for number in ranked[: len(ranked) - count]:
            known[number].compared = max(known[number].compared, known[number].round)
        return Selection(losers, parents) if losers and parents else Selection()

    def copies(
        self, space: Space, pack: Mapping[int, tuple[Trial, int]], reported: Collection[int], first: int
    ) -> Sequence[Copy]:
        """Return a copy for each loser of the pack."""
        losers, parents = self.select(reported, pack)
        candidates = [pack[number] for number in parents]
        pairs = enumerate(losers, first)
        return [Copy(lost, self.child(space, number, candidates)) for number, lost in pairs]

    def child(self, space: Space, number: int, parents: Sequence[tuple[Trial, int]]) -> Trial:
        """Return a changed copy of one of `parents`; the seed, `number` and `parents` decide it."""
        random = Random(f"{space.search.seed}/{number}")
        parent, step = random.choice(parents)
        self._copied[parent.number] = max(step, self._copied.get(parent.number, 0))
        return self._exploration.child(space, parent, number, step, random)

    def forget(self, number: int) -> None:
        self._members.pop(number, None)

    def state(self, number: int) -> Any:
        """Return the newest cost, its round, and when it was compared."""
        kept = self._members.get(number)
        return [kept.cost, kept.round, kept.compared] if kept else None

    def restore(self, number: int, group: int, state: Any) -> None:
        """Restore a trial's newest cost, and when it was last compared."""
        self._members[number] = _Member(*state)
