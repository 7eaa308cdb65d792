"""The compiled form of a space: small closures that turn a trial's draws into values.

Legend: a *draw* is one random coordinate u in [0, 1); a *term* computes a value from draws and named values; a *scope*
is the evaluation of one trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

DrawKind = Literal["uniform", "log_uniform", "int", "log_int", "choice"]
Block = Literal["group", "trial"]


class LanguageError(Exception):
    """What is wrong with one value; whoever knows the file, the line and the path turns it into a SpaceError."""


class Level(IntEnum):
    """What a value can differ by; a term has the highest level of its parts."""

    CONSTANT = 0
    GROUP = 1
    TRIAL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One coordinate of a space."""

    name: str
    """Dotted path of the leaf it stands in; further draws in the same leaf end in `#2`, `#3`."""
    kind: DrawKind
    scope: Block
    """`group`: one coordinate for all trials of a group; `trial`: one for each trial."""
    choices: int | None = None
    """Number of options of a choice (option i is u in [i/n, (i+1)/n)); None for the other kinds."""
    condition: str | None = None
    """When the draw is asked for, in words (`model.scorer=ssa`); None: always."""
    bounds: str
    """The bounds or the options as the file writes them: `[1, $width)`."""


Source = Callable[[Draw], float]
"""Gives the coordinate in [0, 1) of a draw."""


class Scope:
    """The evaluation of one trial: where coordinates come from, and what has been drawn and computed so far."""

    __slots__ = ("draws", "params", "source", "values")

    def __init__(self, source: Source, values: Mapping[str, float]) -> None:
        self.source = source
        self.values = dict(values)
        self.draws: dict[str, float] = {}
        self.params: dict[str, Any] = {}

    def ask(self, draw: Draw) -> float:
        """The coordinate of `draw`, noted down; called once per active draw."""
        coordinate = self.source(draw)
        assert 0.0 <= coordinate < 1.0, f"{draw.name}: a sampler gave {coordinate!r}, outside [0, 1)"
        self.draws[draw.name] = coordinate
        return coordinate


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A compiled value; `evaluate` raises LanguageError, ArithmeticError or ValueError where it cannot be computed."""

    evaluate: Callable[[Scope], Any]
    level: Level
    structure: Level = Level.CONSTANT
    """The level of what the value adds to a trial's structure; knobs add nothing."""


def still(values: Mapping[str, float] | None = None) -> Scope:
    """A scope in which nothing can be drawn, for terms below the level TRIAL."""

    def refuse(draw: Draw) -> float:
        raise AssertionError(f"{draw.name} was asked for outside a trial")

    return Scope(refuse, values or {})


def constant(value: Any) -> Term:
    """The term that is always `value`."""
    return Term(evaluate=lambda _: value, level=Level.CONSTANT)


def constant_value(term: Term) -> Any:
    """The value of a term of level CONSTANT."""
    return term.evaluate(still())


def folded(term: Term) -> Term:
    """The same term, computed now if it is constant."""
    return constant(constant_value(term)) if term.level is Level.CONSTANT else term
