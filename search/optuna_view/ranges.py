"""A space as Optuna's distributions: the values that it may give, not those that were seen.

Legend: a *dimension* is a path of `params` that Optuna has as a parameter; `u` is a coordinate of a
draw, in [0, 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import isfinite, sqrt
from random import Random
from statistics import median
from typing import final

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from spaces.errors import GraftError
from spaces.grammar.formulas import Draw, Level
from spaces.records import Params, Scalar
from spaces.space import LAST, Space

SAMPLES = 2_000
"""Trials of a space that are computed for its ranges."""
_RANDOM, _CORNER, _MIDDLE = range(3)
_DIGITS = 12
"""Digits of a bound. u is at most 1 - 2^-53, so a range to 0.1 would end at 0.0999..."""


@final
class Ranges:
    """The dimensions of a study and their distributions.

    A leaf of the space that depends on a draw is a dimension, and so is a word that names a trial's
    part of a study (`arm`, `transfer.target`). Numbers that only follow from others are none. A
    leaf that is a number under one option and a word under another has the number as a dimension.

    The bounds are those of the space. A stored trial outside of them, as of a changed space, widens
    them.
    """

    def __init__(self, spaces: Iterable[Space]) -> None:
        """Start from all `spaces` of the study; without any, values are as they were stored."""
        self._distributions: dict[str, BaseDistribution] = {}
        self._others: set[str] = set()
        for space in spaces:
            values, others = _sample(space)
            self._others |= others
            for path, distribution in values.items():
                self._distributions.setdefault(path, distribution)
                if isinstance(distribution, CategoricalDistribution):
                    bounds = [choice for choice in distribution.choices if choice is not None]
                else:
                    assert isinstance(distribution, IntDistribution | FloatDistribution), "no others"
                    bounds = [distribution.low, distribution.high]
                for bound in bounds:
                    self._cover(path, bound)

    def split(self, params: Params) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
        """Return a trial's dimensions with their values, and its other params."""
        dimensions: dict[str, Scalar] = {}
        others: dict[str, Scalar] = {}
        for path, value in params.items():
            known = self._distributions.get(path)
            is_number = known is not None and not isinstance(known, CategoricalDistribution)
            is_other = path in self._others or (isinstance(value, float) and not isfinite(value))
            is_other = is_other or (is_number and isinstance(value, str | bool))
            (others if is_other else dimensions)[path] = value
        return dimensions, others

    def cover(self, params: Iterable[Params]) -> bool:
        """Widen the distributions to hold these stored values; return True if one had to be."""
        widened = [self._cover(path, value) for values in params for path, value in self.split(values)[0].items()]
        return any(widened)

    def __getitem__(self, path: str) -> BaseDistribution:
        return self._distributions[path]

    def _cover(self, path: str, value: Scalar) -> bool:
        """Widen a path's distribution to hold a value; return False if it holds the value now."""
        known = self._distributions.get(path)
        if known is None:
            self._distributions[path] = _from_values([value])
            return True
        if isinstance(known, CategoricalDistribution):
            if value in known.choices:
                return False
            self._distributions[path] = CategoricalDistribution([*known.choices, value])
            return True
        assert isinstance(known, IntDistribution | FloatDistribution), "there are no others"
        assert not isinstance(value, str), "a word is no value of a range"
        is_kind = isinstance(value, int) or isinstance(known, FloatDistribution)
        if known.low <= value <= known.high and is_kind:
            return False
        low, high = min(known.low, value), max(known.high, value)
        is_log = known.log and low > 0
        if isinstance(known, IntDistribution) and isinstance(value, int):
            self._distributions[path] = IntDistribution(int(low), int(high), log=is_log)
        else:
            self._distributions[path] = FloatDistribution(low, high, log=is_log)
        return True


def _sample(space: Space) -> tuple[dict[str, BaseDistribution], set[str]]:
    """Return the distributions of a space's dimensions, and the other paths of its `params`.

    Most formulas are monotone in each draw, with their extremes at the corners of the unit cube: a
    third of the samples is there. Another third has u = 1/2 in every draw but the choices, for the
    middle of each range.
    """
    random = Random(0)
    draws: dict[str, Draw] = {}
    values: defaultdict[str, list[Scalar]] = defaultdict(list)
    middles: defaultdict[str, list[float]] = defaultdict(list)

    def coordinates(way: int) -> Callable[[Draw], float]:
        def coordinate(draw: Draw) -> float:
            draws[draw.name] = draw
            if draw.choices or way == _RANDOM:
                return random.random()
            return 0.5 if way == _MIDDLE else random.choice((0.0, LAST))

        return coordinate

    for index in range(SAMPLES):
        way = index % 3
        try:
            trial = space.sample(index * space.search.trials // SAMPLES, coordinates(way))
        except GraftError:  # draws that break a rule together give no trial
            continue
        for path, value in trial.params.items():
            values[path].append(value)
            if way == _MIDDLE and not isinstance(value, str | bool):
                middles[path].append(value)
    # The rows of an experiment and of a transfer start with the arm or the task.
    leaves = {row.path.rpartition(": ")[2] for row in space.rows if row.level is not Level.CONSTANT}
    dimensions = {
        path
        for path, samples in values.items()
        if path in leaves or all(isinstance(value, str | bool) for value in samples)
    }
    # A path at which only choices are drawn has as many values as they have options together.
    options: dict[str, int] = {}
    for draw in draws.values():
        path = draw.name.partition("#")[0]
        options[path] = options.get(path, 1) * (draw.choices or 0)
    distributions = {
        path: _from_values(values[path], middles[path], options.get(path, 0)) for path in sorted(dimensions)
    }
    return distributions, values.keys() - dimensions


def _from_values(values: Sequence[Scalar], middles: Sequence[float] = (), options: int = 0) -> BaseDistribution:
    """Return a distribution that holds all of these values; words among numbers are left out.

    Up to `options` different numbers are options rather than a range. `middles` are values halfway
    through the range, which is logarithmic if they are nearer to its geometric middle.
    """
    numbers = {value for value in values if not isinstance(value, str | bool) and isfinite(value)}
    if not numbers:
        return CategoricalDistribution(sorted(set(values), key=str))
    if len(numbers) <= options:
        return CategoricalDistribution(sorted(numbers))
    low, high = min(numbers), max(numbers)
    middle = median(middles) if middles else low
    is_log = low > 0 and high > low and abs(middle - sqrt(low * high)) < abs(middle - (low + high) / 2)
    if all(isinstance(value, int) for value in numbers):
        return IntDistribution(int(low), int(high), log=is_log)
    if not is_log and 0 < low <= 10.0**-_DIGITS * high:  # where u goes to 1: `1 - uniform(0, 1)`
        low = 0.0
    return FloatDistribution(_round(low, down=True), _round(high, down=False), log=is_log)


def _round(bound: float, *, down: bool) -> float:
    """Return a bound with few digits, unless that would leave values out."""
    short = float(f"{bound:.{_DIGITS}g}")
    return short if (short <= bound if down else short >= bound) else bound
