"""The parts of a program: memory, values that are computed where they are used, loops and calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workers.numerics.codegen.formulas import cost_of
from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind, contiguous_strides, spell
from workers.numerics.programs.indices import Index, Variable, linear, unravel


@dataclass(eq=False)
class Buffer:
    """Memory of a lane."""

    numel: int
    dtype: torch.dtype
    given: int | None = None
    """The number of the program's argument that it holds, if any."""
    constant: Tensor | None = None
    """The tensor that it holds for all lanes, if any."""
    result: int | None = None
    """The number of the program's result that it holds, if any."""

    @property
    def kept_as(self) -> torch.dtype:
        """The type in memory: truths as wide as floats, so that loops over both fill vectors."""
        return torch.int32 if self.dtype == torch.bool and self.result is None else self.dtype

    @property
    def is_made(self) -> bool:
        """True if the program alone writes and reads it."""
        return self.given is None and self.constant is None and self.result is None


@dataclass(frozen=True, eq=False)
class Stored:
    """Numbers in memory."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def whole(cls, buffer: Buffer, shape: tuple[int, ...]) -> Stored:
        """Return all of a buffer as a tensor, its elements in the order of its axes."""
        return cls(buffer, shape, contiguous_strides(shape))

    @property
    def dtype(self) -> torch.dtype:
        return self.buffer.dtype

    @property
    def weight(self) -> int:
        return 1

    def load(self, body: Body, indices: Sequence[Index]) -> str:
        return body.load(self.buffer, linear(self.offset, self.strides, indices))


@dataclass(frozen=True, eq=False)
class Lazy:
    """Numbers that are computed wherever they are used."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[Body, Sequence[Index]], str]
    weight: int
    """The cost of computing an element; loading one from memory costs 1."""
    is_view: bool = False
    """True for another value under other axes, which is never stored by itself."""


Value = Stored | Lazy


@dataclass(eq=False)
class Loops:
    """Loops that compute elements and store them."""

    axes: tuple[int, ...]
    """The number of iterations of each loop; the last one runs innermost."""
    value: Callable[[Body, Sequence[Index]], str]
    """Returns the expression of the element at these indices."""
    dtype: torch.dtype
    buffer: Buffer
    place: Callable[[Body, Sequence[Index]], Index]
    """Returns the place in the buffer of the element at these indices."""
    how: str = "store"
    """`store`, `sum`, `amax`, `amin`, `all`, `any`, or `scan`: a cumulative sum along an axis."""
    reduced: frozenset[int] = frozenset()
    """Axes that are summed over."""
    is_scattered: bool = False
    """True if indices from memory say where results are added, in any order."""
    scanned: tuple[int, int] = (0, 0)
    """The axis of a scan, and the stride from one element to the next in memory."""


@dataclass(eq=False)
class Call:
    """A call of a function of programs.cpp: a matrix product, or a spline."""

    name: str
    """The name without its precision, which is that of the first tensor written."""
    read: Sequence[Stored | None]
    written: Sequence[Stored]
    sizes: Sequence[int]

    @property
    def function(self) -> str:
        return f"{self.name}_{str(self.written[0].dtype).removeprefix('torch.')}"

    @property
    def buffers(self) -> list[Buffer | None]:
        """The memory of the arguments, in their order."""
        return [stored.buffer if stored else None for stored in (*self.read, *self.written)]

    @property
    def numbers(self) -> list[int]:
        """The sizes, then the offset of each argument in its memory."""
        return [*self.sizes, *(stored.offset if stored else 0 for stored in (*self.read, *self.written))]


_CHANGES = re.compile(r"\b(v\d+|c)\b")


@dataclass
class Body:
    """The statements of loops for one row: those before the innermost loop, and those in it."""

    rows: frozenset[str]
    """Variables of the outer loops; that of the innermost one is `c`."""
    locate: Callable[[Buffer, Index], str]
    """Returns the expression of an element of memory."""
    outside: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)
    loads: list[tuple[Buffer, Index]] = field(default_factory=list)
    _known: dict[tuple[str, torch.dtype], str] = field(default_factory=dict)

    def load(self, buffer: Buffer, index: Index) -> str:
        """Return the variable that holds an element of memory."""
        self.loads.append((buffer, index))
        return self.hold(self.locate(buffer, index), buffer.dtype)

    def hold(self, expression: str, dtype: torch.dtype) -> str:
        """Return a variable with the expression's value."""
        if known := self._known.get((expression, dtype)):
            return known
        changes = bool(_CHANGES.search(expression))
        name = f"{'v' if changes else 'u'}{len(self._known)}"
        lines = self.inside if changes else self.outside
        lines.append(f"const {TYPES[dtype]} {name} = {TYPES[dtype]}({expression});")
        self._known[expression, dtype] = name
        return name

    def read_index(self, name: str, size: int) -> Index:
        """Return an index read from memory; one outside of 0 .. size - 1 is a fault."""
        if not size:
            raise CannotGenerate("an index into nothing")
        name = self.hold(f"bounded({name}, {size}, fault)", torch.int64)
        names = frozenset("c") if name.startswith("v") else self.rows
        return Index(0, {Variable(f"long({name})", size, names | {"read"}): 1})


def broadcast(shape: Sequence[int], indices: Sequence[Index]) -> list[Index]:
    """Return the indices of an operand of this shape for an element of the result."""
    tail = indices[len(indices) - len(shape) :]
    return [Index() if size == 1 else index for size, index in zip(shape, tail, strict=True)]


def element(body: Body, operand: Any, indices: Sequence[Index], dtype: torch.dtype) -> str:
    """Return the expression, in this type, of an element of a value or of a number."""
    if not isinstance(operand, Stored | Lazy):
        return spell(operand, dtype)
    expression = operand.load(body, broadcast(operand.shape, indices))
    return expression if operand.dtype == dtype else body.hold(f"{TYPES[dtype]}({expression})", dtype)


def formula(template: str, operands: Sequence[Any], kind: Kind, dtype: torch.dtype) -> Lazy:
    """Return the value of a formula of the operands' elements, computed in `dtype`."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        texts = [element(body, item, indices, dtype) for item in operands]
        if template == "{0}" and dtype == kind.dtype:
            return texts[0]
        texts = [text if text.isidentifier() else f"({text})" for text in texts]
        return body.hold(template.format(*texts, T=TYPES[dtype]), kind.dtype)

    cost = 0 if template == "{0}" else cost_of(template)
    return Lazy(kind.shape, kind.dtype, load, cost + weight_of(operands))


def new(kind: Kind) -> Stored:
    """Return a new buffer as a tensor, its elements in the order of its axes."""
    return Stored.whole(Buffer(kind.numel, kind.dtype), kind.shape)


def weight_of(operands: Sequence[Any]) -> int:
    """Return the cost of an element of every operand; numbers cost nothing."""
    return sum(operand.weight for operand in operands if isinstance(operand, Stored | Lazy))


def view_of(source: Lazy, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Lazy:
    """Return a view of a value; strides and offset count its elements in the order of its axes."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        return source.load(body, unravel(linear(offset, strides, indices), source.shape))

    return Lazy(shape, source.dtype, load, source.weight, is_view=True)


def sliced(value: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
    """Return the elements of a value from `start` to below `end` along an axis, every `step`-th."""
    shape = (*value.shape[:axis], len(range(start, end, step)), *value.shape[axis + 1 :])
    if isinstance(value, Stored):
        strides = [*value.strides]
        strides[axis] *= step
        offset = value.offset + start * value.strides[axis]
        return Stored(value.buffer, shape, tuple(strides), offset)

    def load(body: Body, indices: Sequence[Index]) -> str:
        shifted = [*indices]
        shifted[axis] = Index(start).plus(indices[axis], step)
        return value.load(body, shifted)

    return Lazy(shape, value.dtype, load, value.weight, is_view=True)
