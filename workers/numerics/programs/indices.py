"""Indices as sums of loop variables times whole numbers, so that most reshaping needs no division.

A variable runs from 0 to below its size. A quotient, or a number read from a tensor, is a variable
that is named by its expression.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Variable(NamedTuple):
    """A number from 0 to below `size` in a kernel."""

    name: str
    """The name of a loop variable, or an expression, in C++."""
    size: int
    names: frozenset[str] = frozenset()
    """Loop variables that an expression depends on; empty for a loop variable itself."""


class Index(NamedTuple):
    """A constant and a sum of variables times factors."""

    constant: int = 0
    terms: Mapping[Variable, int] = {}

    @staticmethod
    def of(variable: Variable) -> Index:
        return Index(0, {variable: 1} if variable.size > 1 else {})

    def plus(self, other: Index, factor: int = 1) -> Index:
        """Return the sum of this index and another one times a factor."""
        terms = {**self.terms}
        for variable, coefficient in other.terms.items():
            terms[variable] = terms.get(variable, 0) + coefficient * factor
        terms = {variable: coefficient for variable, coefficient in terms.items() if coefficient}
        return Index(self.constant + other.constant * factor, terms)

    @property
    def least(self) -> int:
        return self.constant + sum(min(0, factor) * (variable.size - 1) for variable, factor in self.terms.items())

    @property
    def most(self) -> int:
        return self.constant + sum(max(0, factor) * (variable.size - 1) for variable, factor in self.terms.items())

    def write(self) -> str:
        items = self.terms.items()
        terms = [variable.name if factor == 1 else f"{variable.name} * {factor}" for variable, factor in items]
        return " + ".join([*terms, *([str(self.constant)] if self.constant or not terms else [])])

    def without(self, names: frozenset[str]) -> Index:
        """Return the index without these loop variables, which are in no expression of it."""
        terms = {variable: factor for variable, factor in self.terms.items() if variable.name not in names}
        return Index(self.constant, terms)

    def part(self, names: frozenset[str]) -> Mapping[Variable, int]:
        """Return the terms that change with these loop variables."""
        items = self.terms.items()
        return {variable: factor for variable, factor in items if variable.name in names or variable.names & names}


def linear(offset: int, strides: Sequence[int], indices: Sequence[Index]) -> Index:
    """Return the offset of an element in memory from its index along each axis."""
    total = Index(offset)
    for stride, index in zip(strides, indices, strict=True):
        total = total.plus(index, stride)
    return total


def unravel(flat: Index, shape: Sequence[int]) -> list[Index]:
    """Return the index along each axis, from an element's number in the order of the axes."""
    indices: list[Index] = []
    for axis, size in enumerate(shape):
        quotient, flat = _divide(flat, math.prod(shape[axis + 1 :]))
        indices.append(quotient if size > 1 else Index())
    return indices


def _divide(index: Index, by: int) -> tuple[Index, Index]:
    """Return quotient and remainder of an index that is not negative."""
    if by == 1:
        return index, Index()
    whole = {variable: factor // by for variable, factor in index.terms.items() if factor % by == 0}
    rest = {variable: factor for variable, factor in index.terms.items() if factor % by}
    quotient, remainder = Index(index.constant // by, whole), Index(index.constant % by, rest)
    if remainder.least >= 0 and remainder.most < by:
        return quotient, remainder
    names = frozenset(name for variable in rest for name in (variable.names or {variable.name}))
    text = remainder.write()
    low = remainder.least // by
    if low < 0:  # shifted, as C++ rounds quotients towards zero
        text, quotient = f"{text} + {-low * by}", quotient.plus(Index(low))
    over = Variable(f"(({text}) / {by})", remainder.most // by - low + 1, names)
    left = Variable(f"(({text}) % {by})", by, names)
    return quotient.plus(Index(0, {over: 1})), Index(0, {left: 1})
