"""The five distributions: maps from a coordinate u in [0, 1) to a value.

uniform(a, b)      real, [a, b)
log_uniform(a, b)  real, [a, b), its logarithm uniform; a > 0
int(a, b)          integer, a and b included
log_int(a, b)      integer, a and b included, P(k) proportional to log((k + 1) / k); a > 0
choice(x, y, ...)  one of the options, equally likely; the others and their draws are not evaluated
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from spaces.grammar.formulas import Draw, DrawKind, Formula, LanguageError, Level, Scope, evaluate_constant
from spaces.messages import number

KINDS: tuple[DrawKind, ...] = get_args(DrawKind)
_EXACT = 2.0**53


def _below(value: float, low: float, high: float) -> float:
    # Rounding may reach the open end; the number before it keeps floor(uniform(0, n)) < n true.
    return value if value < high else max(low, math.nextafter(high, low))


def _log_uniform(low: float, high: float, u: float) -> float:
    start = math.log(low)
    return _below(max(low, math.exp(start + (math.log(high) - start) * u)), low, high)


@dataclass(frozen=True, kw_only=True)
class Range:
    """A distribution between two bounds."""

    value: Callable[[float, float, float], float]
    """(low, high, u) -> value."""
    integer: bool = False
    positive: bool = False

    def check(self, kind: DrawKind, low: float, high: float) -> None:
        """Raise LanguageError unless low <= high and both fit the distribution."""
        shown = f"{kind}({number(low)}, {number(high)})"
        if not low <= high:
            raise LanguageError(f"{shown}: the lower bound comes first, write {kind}({number(high)}, {number(low)})")
        if self.positive and low <= 0:
            raise LanguageError(f"{shown}: the bounds must be positive")
        if self.integer and (low % 1 or high % 1 or max(-low, high) > _EXACT):
            raise LanguageError(f"{shown}: the bounds must be whole numbers of at most 2^53")
        if math.isinf(high - low):
            raise LanguageError(f"{shown}: the range is wider than a number can be")


RANGES: Mapping[DrawKind, Range] = {
    "uniform": Range(value=lambda low, high, u: _below(low + (high - low) * u, low, high)),
    "log_uniform": Range(value=_log_uniform, positive=True),
    "int": Range(value=lambda low, high, u: min(high, low + math.floor((high - low + 1) * u)), integer=True),
    "log_int": Range(
        value=lambda low, high, u: min(high, float(math.floor(_log_uniform(low, high + 1, u)))),
        integer=True,
        positive=True,
    ),
}


def describe_bounds(kind: DrawKind, arguments: Sequence[str]) -> str:
    """Return the bounds or the options for a person: `[0, 4)`, `[1, 8]`, `softmax | ssa`."""
    if kind == "choice":
        return " | ".join(arguments)
    return f"[{', '.join(arguments)}{']' if RANGES[kind].integer else ')'}"


def draw_between(draw: Draw, bounds: Sequence[Formula]) -> Formula:
    """Return the formula of a draw between two bounds, which are formulas themselves.

    Raises LanguageError for bad constant bounds; other bounds are checked at each trial.
    """
    kind = RANGES[draw.kind]
    level = max(_level(draw), *(bound.level for bound in bounds))
    if all(bound.level is Level.CONSTANT for bound in bounds):
        low, high = (float(evaluate_constant(bound)) for bound in bounds)
        kind.check(draw.kind, low, high)
        if low == high:
            raise LanguageError(
                f"{draw.kind}({number(low)}, {number(high)}) leaves nothing to draw, write {number(low)}"
            )
        return Formula(evaluate=lambda scope: kind.value(low, high, scope.ask(draw)), level=level)
    first, second = (bound.evaluate for bound in bounds)

    def evaluate(scope: Scope) -> float:
        low, high = float(first(scope)), float(second(scope))
        kind.check(draw.kind, low, high)
        return kind.value(low, high, scope.ask(draw))

    return Formula(evaluate=evaluate, level=level)


def choose_option(draw: Draw, options: Sequence[Formula]) -> Formula:
    """Return the formula of a choice of options; the structure then depends on the draw."""
    evaluates = [option.evaluate for option in options]
    count = len(evaluates)
    level = max(_level(draw), *(option.level for option in options))
    return Formula(evaluate=lambda scope: evaluates[int(scope.ask(draw) * count)](scope), level=level, structure=level)


def _level(draw: Draw) -> Level:
    return Level.GROUP if draw.scope == "group" else Level.TRIAL
