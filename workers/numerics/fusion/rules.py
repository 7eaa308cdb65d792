"""Rules that compute a tensor's elements from its operands': views, arithmetic, sums and joints."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.numerics.codegen.formulas import cost_of
from workers.numerics.codegen.values import TYPES, spell
from workers.numerics.fusion.cuts import Place
from workers.numerics.fusion.writing import Scope, Writer
from workers.numerics.simplifying import Slot

LONG, PARTS = 64, 32
"""A sum of more than LONG terms is made of PARTS partial sums."""
SMALL_PRODUCT = 4096
"""The most multiplications of a product of matrices in a generated kernel.

On an H200 cuBLAS takes 11 times as long for 8 by 16 times 16 by 8 as reading and writing these, and
1.6 times as long for 64 by 32 times 32 by 64. Nothing in between was measured.
"""
SHORT_SCATTER = 8
"""The most terms of a scatter: each element looks through all of them for its own."""


@dataclass(frozen=True)
class View:
    """A view: the numbers of its source at other places."""

    source: Slot | Tensor
    move: Callable[[Writer, Scope, Place, tuple[int, ...]], Place]
    """Return the place in the source for a place in the view, given the source's shape."""

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        there = self.move(writer, scope, place, writer.kind(self.source).shape)
        return writer.value(scope, self.source, there)


@dataclass(frozen=True)
class Pointwise:
    """A formula of the operands' elements at one place."""

    template: str
    operands: list[Any]
    dtype: torch.dtype
    """The type that the formula is computed in."""

    @property
    def cost(self) -> int:
        return cost_of(self.template)

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        operands: list[str] = []
        for operand in self.operands:
            expression = writer.element(scope, operand, place, self.dtype)
            is_call = expression.endswith(")") and expression[0].isalpha()
            operands.append(expression if is_call or expression.isidentifier() else f"({expression})")
        return self.template.format(*operands, T=TYPES[self.dtype])


@dataclass(frozen=True)
class Choice:
    """A choice between two operands, element by element, by a third."""

    condition: Any
    then: Any
    otherwise: Any
    dtype: torch.dtype
    cost: int = 1

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        chosen = writer.element(scope, self.condition, place, torch.bool)
        then = writer.element(scope, self.then, place, self.dtype)
        other = writer.element(scope, self.otherwise, place, self.dtype)
        return f"{chosen} ? {then} : {other}"


@dataclass(frozen=True)
class Reduction:
    """A sum, mean or extreme along axes; one of many terms is made of partial ones."""

    source: Slot | Tensor
    axes: tuple[int, ...]
    kept: bool
    how: str
    """`sum`, `mean`, `amax` or `amin`."""
    dtype: torch.dtype

    def terms(self, shape: tuple[int, ...]) -> int:
        """Return how many numbers of a source of this shape are reduced to one."""
        return math.prod(shape[axis] for axis in self.axes)

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        shape = writer.kind(self.source).shape
        outer, inner = self.axes_of(writer, scope, place, shape), Scope(scope)
        total = writer.name("t")
        scope.say(f"{TYPES[self.dtype]} {total} = {self.start};")
        names = {axis: writer.name("r") for axis in self.axes}
        term = self.term(writer, inner, place, {**outer, **names}, shape)
        inner.say(self.joined(total, term))
        sizes = {name: shape[axis] for axis, name in names.items()}
        loops = [f"for (int {name} = 0; {name} < {size}; {name}++)" for name, size in sizes.items()]
        scope.put(" ".join(loops), inner)
        return self.finish(total, shape)

    def write_part(self, writer: Writer, scope: Scope, place: Place, part: str) -> str:
        """Return the sum of every 32nd term or, if terms lie apart, of a run of them."""
        shape = writer.kind(self.source).shape
        terms, run = self.terms(shape), -(-self.terms(shape) // PARTS)
        outer, inner = self.axes_of(writer, scope, place, shape), Scope(scope)
        total, term = writer.name("t"), writer.name("r")
        scope.say(f"{TYPES[self.dtype]} {total} = {self.start};")
        sizes = tuple(shape[axis] for axis in self.axes)
        indices = writer.axes(inner, Place(sizes, None, term, aligned=False))
        axes = outer | dict(zip(self.axes, indices, strict=True))
        inner.say(self.joined(total, self.term(writer, inner, place, axes, shape)))
        head = f"for (int {term} = {part}; {term} < {terms}; {term} += {PARTS})"
        if not self.interleaved(shape):
            end = f"{term} < {part} * {run} + {run} && {term} < {terms}"
            head = f"for (int {term} = {part} * {run}; {end}; {term}++)"
        scope.put(head, inner)
        return total

    def interleaved(self, shape: tuple[int, ...]) -> bool:
        """Return whether the parts are interleaved: where terms lie side by side in memory."""
        return max(self.axes) == len(shape) - 1

    def axes_of(self, writer: Writer, scope: Scope, place: Place, shape: tuple[int, ...]) -> dict[int, str]:
        """Return the expression of each axis of the source that remains."""
        axes = writer.axes(scope, place)
        outer = [axis for axis in range(len(shape)) if axis not in self.axes]
        return {axis: axes[axis if self.kept else number] for number, axis in enumerate(outer)}

    def term(self, writer: Writer, scope: Scope, place: Place, axes: Mapping[int, str], shape: tuple[int, ...]) -> str:
        indices = tuple("0" if shape[axis] == 1 else axes[axis] for axis in range(len(shape)))
        there = writer.move(place, shape, indices, set(self.axes))
        return writer.element(scope, self.source, there, self.dtype)

    @property
    def start(self) -> str:
        """The expression that a total starts from."""
        if self.how in ("sum", "mean"):
            return spell(0, self.dtype)
        return ("-" if self.how == "amax" else "") + f"INFINITY_OF({TYPES[self.dtype]})"

    def joined(self, total: str, term: str) -> str:
        """Return the statement that adds a term to a total."""
        name = {"amax": "larger", "amin": "smaller"}.get(self.how)
        return f"{total} = {name}({term}, {total});" if name else f"{total} += {term};"

    def finish(self, total: str, shape: tuple[int, ...]) -> str:
        """Return the expression of the result, given its total."""
        count = f"{TYPES[self.dtype]}({self.terms(shape)})"
        return f"{total} / {count}" if self.how == "mean" else total


@dataclass(frozen=True)
class Product:
    """A product of small matrices, [B, m, k] by [B, k, n], that adds k terms in their order."""

    left: Slot | Tensor
    right: Slot | Tensor
    terms: int
    """The number of terms of an entry, k."""
    dtype: torch.dtype

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        left, right = writer.kind(self.left).shape, writer.kind(self.right).shape
        number, row, column = writer.axes(scope, place)
        total, term, inner = writer.name("t"), writer.name("r"), Scope(scope)
        scope.say(f"{TYPES[self.dtype]} {total} = {spell(0, self.dtype)};")
        factor = writer.value(inner, self.left, writer.move(place, left, (number, row, term), {2}))
        by = writer.value(inner, self.right, writer.move(place, right, (number, term, column), {1}))
        inner.say(f"{total} += {factor} * {by};")
        scope.put(f"for (int {term} = 0; {term} < {self.terms}; {term}++)", inner)
        return total


Summed = Reduction | Product
"""A rule that adds up many numbers, whose result is stored so that it is computed once."""


@dataclass(frozen=True)
class Gathered:
    """A gather: elements of a source, whose index along an axis is read from memory."""

    source: Slot | Tensor
    axis: int
    index: Slot | Tensor

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        shape = writer.kind(self.source).shape
        axes = list(writer.axes(scope, place))
        axes[self.axis] = writer.hold_index(scope, f"int({writer.value(scope, self.index, place)})")
        return writer.value(scope, self.source, writer.move(place, shape, tuple(axes), {self.axis}))


@dataclass(frozen=True)
class Embedded:
    """The rows of a table that an index names."""

    table: Slot | Tensor
    index: Slot | Tensor

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        axes, rows = writer.axes(scope, place), writer.kind(self.index).shape
        row = writer.value(scope, self.index, writer.move(place, rows, axes[:-1], set()))
        there = writer.hold_index(scope, f"int({row})"), axes[-1]
        moved = Place(writer.kind(self.table).shape, there, None, aligned=False)
        return writer.value(scope, self.table, moved)


@dataclass(frozen=True)
class Scattered:
    """A few numbers of each row, added where an index says; each element looks for its own."""

    source: Slot | Tensor
    axis: int
    index: Slot | Tensor
    added: Slot | Tensor
    dtype: torch.dtype

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        axes, shape = writer.axes(scope, place), writer.kind(self.index).shape
        kind, total = TYPES[self.dtype], writer.name("t")
        scope.say(f"{kind} {total} = {writer.element(scope, self.source, place, self.dtype)};")
        for term in range(shape[self.axis]):
            indices = tuple(str(term) if axis == self.axis else index for axis, index in enumerate(axes))
            there = writer.move(place, shape, indices, {self.axis})
            inner = Scope(scope)
            inner.say(f"{total} += {writer.element(inner, self.added, there, self.dtype)};")
            scope.put(f"if ({writer.value(scope, self.index, there)} == {axes[self.axis]})", inner)
        return total


@dataclass(frozen=True)
class Joined:
    """Pieces side by side along an axis, and a number between them."""

    axis: int
    pieces: list[tuple[Slot | Tensor, int, int, int]]
    """The tensor of each piece, its first index, the index after its last, and the step."""
    filling: float
    dtype: torch.dtype
    cost: int = 1

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        axes, total = writer.axes(scope, place), writer.name("t")
        scope.say(f"{TYPES[self.dtype]} {total} = {spell(self.filling, self.dtype)};")
        here = axes[self.axis]
        for piece, first, end, step in self.pieces:
            inner, shape = Scope(scope), writer.kind(piece).shape
            within = f"{here} >= {first} && {here} < {end}"
            index = here if (first, step) == (0, 1) else f"({here} - {first})"
            if step > 1:
                within, index = f"{within} && {index} % {step} == 0", f"{index} / {step}"
            there = list(axes)
            if len(shape) < len(axes):  # what was selected has no such axis
                del there[self.axis]
            else:
                there[self.axis] = "0" if shape[self.axis] == 1 else writer.hold_index(inner, index)
            moved = writer.move(place, shape, tuple(there), {self.axis})
            inner.say(f"{total} = {writer.element(inner, piece, moved, self.dtype)};")
            scope.put(f"if ({within})", inner)
        return total
