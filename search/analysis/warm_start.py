"""A prior from earlier studies for a new one: points to try first, and where good trials lie.

Legend: a *winner* is one of an earlier study's best trials; a *source* is the winners of one task
of one study; `u` is a coordinate of a draw, in [0, 1).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import polars as pl

from search.analysis.transfer.compatibility_matrix import GAIN, Matrix
from spaces.grammar.distributions import RANGES
from spaces.grammar.formulas import Draw
from spaces.space import Space

READ = ("task", "draws")

MOST_CANDIDATES = 8
FEWEST_WINNERS = 5
MOST_WINNERS = 50
_WIDEST = 0.8
"""A wider range is no narrowing of [0, 1]."""
_NEAR = 0.05
"""Candidates closer than this in every draw count as one."""

Point = Mapping[str, float]
Carry = Callable[[float], float | None]
"""u of a source -> the same value's u in the target; None if the target cannot draw it."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A study that may be learnt from."""

    name: str
    space: Space
    winners: pl.DataFrame
    """Columns READ, the best trial first; `draws` is JSON."""


@dataclass(frozen=True, kw_only=True)
class Prior:
    """The start of a search."""

    candidates: tuple[Point, ...]
    """Coordinates to try first, the most promising first; a draw may be missing."""
    box: Mapping[str, tuple[float, float]]
    """Draw -> the range in which winners lie; a draw on which they disagree is missing."""
    studies: tuple[str, ...]
    """The studies of these winners, the most promising first."""


@dataclass(frozen=True, kw_only=True)
class _Source:
    study: str
    weight: float
    points: Sequence[Point]


def winners_of(finished: int) -> int:
    """Return the number of winners among finished trials: a tenth, from 5 to 50."""
    return min(max(math.ceil(finished / 10), FEWEST_WINNERS), MOST_WINNERS)


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The gain of a source task's architecture on another task; above 0 is better."""

    unit: str
    """`points`, `percent` or `difference`, as in `Matrix.cells`."""
    mean: float
    low: float | None
    """None if there is a single pair."""
    high: float | None

    @property
    def sure(self) -> float:
        """The end of the interval next to 0; 0 if it holds 0 or there is none."""
        if self.low is None or self.high is None:
            return 0.0
        return max(self.low, 0.0) + min(self.high, 0.0)


def gains(matrices: Iterable[Matrix], task: str | None) -> Mapping[str, Gain]:
    """Return source task -> what its architecture gains on `task`; empty for a task that is drawn.

    Cells of several matrices in one unit have a weighted mean, by the inverse squares of the
    intervals' widths, as for independent estimates (Cochran 1954, "The Combination of Estimates
    from Different Experiments"). Of several units that of most matrices is kept, then the first in
    the alphabet. A cell without an interval counts only if no matrix has one.
    """
    if task is None:
        return {}
    maximizes = pl.col("direction") == "maximize"
    ends = [pl.when(maximizes).then(pl.col(end)).otherwise(-pl.col(end)) for end in ("low", "high")]
    low, high = pl.min_horizontal(ends), pl.max_horizontal(ends)
    cells = [matrix.cells.select("source", "target", "unit", GAIN, low=low, high=high) for matrix in matrices]
    if not cells:
        return {}
    known = pl.concat(cells).filter(pl.col("target") == task).drop_nulls("gain")
    by_source: dict[str, Gain] = {}
    for (source,), rows in known.group_by("source"):
        counts = rows.group_by("unit").len().sort(-pl.col("len").cast(pl.Int64), "unit")
        unit = counts["unit"][0]
        alike = rows.filter(pl.col("unit") == unit)
        sure = alike.drop_nulls(["low", "high"])
        if sure.is_empty():
            mean = float(np.mean(alike["gain"].to_numpy()))
            by_source[str(source)] = Gain(unit=unit, mean=mean, low=None, high=None)
            continue
        # Equal pairs have an interval of width 0.
        reach = np.maximum((sure["high"] - sure["low"]).to_numpy() / 2, 1e-12)
        weights = reach**-2 / np.sum(reach**-2)
        mean, margin = float(weights @ sure["gain"].to_numpy()), float(np.sum(reach**-2) ** -0.5)
        by_source[str(source)] = Gain(unit=unit, mean=mean, low=mean - margin, high=mean + margin)
    return by_source


def task_of(space: Space) -> str | None:
    """Return the task's name; None if it is drawn."""
    texts = [row.text for row in space.rows if row.path == "task"]
    return texts[0] if len(texts) == 1 else None


def prior(target: Space, earlier: Sequence[Earlier], gains: Mapping[str, Gain]) -> Prior:
    """Return the prior for `target`; without candidates if no winner has a draw of the target.

    Sources count in the order of their weight: the target's own task first, then the tasks with the
    largest gains (search.analysis.transfer.compatibility_matrix), each by the end of its interval
    next to 0, or 0. Those of negative weight, which are sure to lose, are left out.
    """
    task = task_of(target)
    sources = [source for study in earlier for source in _sources(target, study, task, gains)]
    sources = sorted((source for source in sources if source.weight >= 0), key=lambda source: -source.weight)
    most = min(MOST_CANDIDATES, max(1, target.search.trials // 4))
    points = [point for source in sources for point in source.points]
    box: dict[str, tuple[float, float]] = {}
    for draw in target.own_draws:
        values = [point[draw.name] for point in points if draw.name in point]
        if len(values) < FEWEST_WINNERS:
            continue
        low, high = map(float, np.quantile(values, [0.1, 0.9]))
        if draw.choices:  # a choice keeps whole options
            low = int(low * draw.choices) / draw.choices
            high = (int(high * draw.choices) + 1) / draw.choices
        else:  # wider, the fewer values there are
            margin = 0.5 / math.sqrt(len(values))
            low, high = max(0.0, low - margin), min(1.0, high + margin)
        if high - low <= _WIDEST:
            box[draw.name] = low, high
    return Prior(
        candidates=tuple(_candidates(target, sources)[:most]),
        box=box,
        studies=tuple(dict.fromkeys(source.study for source in sources)),
    )


def _sources(target: Space, earlier: Earlier, target_task: str | None, gains: Mapping[str, Gain]) -> Iterator[_Source]:
    carries = match_draws(earlier.space, target)
    for (task,), rows in earlier.winners.group_by("task", maintain_order=True):
        points: list[Point] = []
        for draws in map(json.loads, rows["draws"]):
            values = {name: carry(draws[name]) for name, carry in carries.items() if name in draws}
            if point := {name: u for name, u in values.items() if u is not None}:
                points.append(point)
        if points:
            gain = gains.get(str(task))
            weight = math.inf if task == target_task else gain.sure if gain else 0.0
            yield _Source(study=earlier.name, weight=weight, points=points)


def _candidates(target: Space, sources: Sequence[_Source]) -> list[Point]:
    """Return the best point of each source, then the second best and so on, without near ones."""
    options = {draw.name: draw.choices or 0 for draw in target.own_draws}

    def is_near(candidate: Point, other: Point) -> bool:
        return candidate.keys() == other.keys() and all(
            int(u * count) == int(other[name] * count) if (count := options[name]) else abs(u - other[name]) < _NEAR
            for name, u in candidate.items()
        )

    candidates: list[Point] = []
    for rank in zip_longest(*(source.points for source in sources)):
        for point in filter(None, rank):
            if not any(is_near(point, other) for other in candidates):
                candidates.append(point)
    return candidates


# -- a draw in two spaces ---------------------------------------------------------------------


def match_draws(source: Space, target: Space) -> Mapping[str, Carry]:
    """Return the draws of the target's trials that the source has too, by name, kind and condition.

    Draws of the task itself are left out: they are the question, not a way to learn it. So are
    ranges that differ, if a bound is not a plain number.
    """
    known = {draw.name: draw for draw in source.draws}
    carries: dict[str, Carry] = {}
    for draw in target.own_draws:
        twin = known.get(draw.name)
        is_same = twin and (twin.kind, twin.condition) == (draw.kind, draw.condition)
        section = draw.name.partition("#")[0].partition(".")[0]
        if twin and is_same and section != "task" and (carry := _carry(twin, draw)):
            carries[draw.name] = carry
    return carries


def _carry(source: Draw, target: Draw) -> Carry | None:
    """Return the map from a draw's coordinate to that of another; None without plain numbers."""
    if source.bounds == target.bounds:
        return lambda u: u
    if source.kind == "choice":
        options, others = source.bounds.split(" | "), target.bounds.split(" | ")

        def carry_option(u: float) -> float | None:
            option = options[int(u * len(options))]
            return (others.index(option) + 0.5) / len(others) if option in others else None

        return carry_option
    ends, target_ends = _ends(source), _ends(target)
    if ends is None or target_ends is None:
        return None

    low, high = target_ends

    def carry_value(u: float) -> float | None:
        value = RANGES[source.kind].value(*ends, u)
        if source.kind == "uniform":
            v = (value - low) / (high - low)
        elif source.kind == "int":  # of the coordinates that give an integer, the middle one
            v = (value - low + 0.5) / (high - low + 1)
        elif source.kind == "log_uniform":
            v = math.log(value / low) / math.log(high / low)
        else:
            v = math.log((value + 0.5) / low) / math.log((high + 1) / low)
        return v if 0 <= v < 1 else None

    return carry_value


def _ends(draw: Draw) -> tuple[float, float] | None:
    """Return the bounds of a range, `[1e-4, 0.1)`; None if they are not two numbers."""
    try:
        low, high = map(float, draw.bounds[1:-1].split(", "))
    except ValueError:
        return None
    return low, high
