"""The compiled form of a space: small closures that turn a trial's draws into values.

Legend: a *draw* is one distribution of a space, for which a sampler chooses a *coordinate* u in [0,
1); a *formula* computes a value from draws and named values; a *scope* holds these while one trial
is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from spaces.errors import SamplerError
from spaces.messages import shorten
from spaces.records import Scalar

DrawKind = Literal["uniform", "log_uniform", "int", "log_int", "choice"]
Block = Literal["group", "trial"]


class LanguageError(Exception):
    """An error in one value; `with_location` makes it a SpaceError with file, line and path."""


class Level(IntEnum):
    """The level at which a value may differ; a formula has the highest level of its parts."""

    CONSTANT = 0
    GROUP = 1
    TRIAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One distribution of a space."""

    name: str
    """Dotted path of the leaf it stands in; further draws in the same leaf end in `#2`, `#3`."""
    kind: DrawKind
    scope: Block
    """`group`: one coordinate for all trials of a group; `trial`: one for each trial."""
    choices: int | None = None
    """Number of options of a choice (option i is u in [i/n, (i+1)/n)); None for the other kinds."""
    condition: str | None = None
    """The condition under which it is drawn (`model.scorer=ssa`); None for always."""
    bounds: str
    """The bounds or the options as the file writes them: `[1, $width)`."""


CoordinateOf = Callable[[Draw], float]
"""The coordinate in [0, 1) of a draw."""


class Scope:
    """One trial in the making: its source of coordinates, its draws and its values so far."""

    __slots__ = ("coordinate_of", "draws", "params", "values")

    def __init__(self, coordinate_of: CoordinateOf, values: Mapping[str, float]) -> None:
        self.coordinate_of = coordinate_of
        self.values = dict(values)
        self.draws: dict[str, float] = {}
        self.params: dict[str, Scalar] = {}

    def ask(self, draw: Draw) -> float:
        """Return the coordinate of `draw`, which is recorded; called once per active draw."""
        try:
            coordinate = self.coordinate_of(draw)
        except (ArithmeticError, ValueError) as error:
            # Formulas raise these for a value that cannot be computed, which is the space's fault.
            problem = f"no coordinate of {draw.name} was drawn: {type(error).__name__}: {shorten(str(error))}"
            raise SamplerError(f"search.sampler: {problem}") from error
        assert 0.0 <= coordinate < 1.0, f"{draw.name}: a sampler gave {coordinate!r}, not in [0, 1)"
        self.draws[draw.name] = coordinate
        return coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A compiled value; `evaluate` may raise LanguageError, ArithmeticError or ValueError."""

    evaluate: Callable[[Scope], Any]
    level: Level
    structure: Level = Level.CONSTANT
    """The level of the value's part of a trial's structure; knobs have none."""


def scope_without_draws(values: Mapping[str, float] | None = None) -> Scope:
    """Return a scope in which nothing can be drawn, for formulas below the level TRIAL."""

    def refuse(draw: Draw) -> float:
        raise AssertionError(f"{draw.name} was asked for outside a trial")

    return Scope(refuse, values or {})


def constant(value: Any) -> Formula:
    """Return the formula that is always `value`."""
    return Formula(evaluate=lambda _: value, level=Level.CONSTANT)


def named_value(name: str, level: Level) -> Formula:
    """Return the formula of a named value that was computed before."""
    return Formula(evaluate=lambda scope: scope.values[name], level=level)


def evaluate_constant(formula: Formula) -> Any:
    """Return the value of a formula of level CONSTANT."""
    return formula.evaluate(scope_without_draws())


def fold_constant(formula: Formula) -> Formula:
    """Return the same formula, computed now if it is constant."""
    return constant(evaluate_constant(formula)) if formula.level is Level.CONSTANT else formula
