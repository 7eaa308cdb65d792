"""The rules of operations that are neither views nor pointwise: they return the results' values.

Arguments: the lowering, for loops and calls, the kind of the first result, and the operation's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from workers.numerics.codegen.formulas import has_formula
from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind, contiguous_strides
from workers.numerics.programs.indices import Index, linear
from workers.numerics.programs.lowering import LIGHT, PRODUCTS, SPLINES, VIEWS, Lowering, Rules, out_of_place
from workers.numerics.programs.reductions import axes_from_front, cumulative_sum, reduce, var_mean
from workers.numerics.programs.values import (
    Body,
    Call,
    Lazy,
    Stored,
    Value,
    element,
    formula,
    new,
    sliced,
    view_of,
    weight_of,
)

_SHORT_SCATTER = 8
"""The most indices of a row for which `scatter_add` compares every element with every index."""


def _clone(lowering: Lowering, kind: Kind, source: Value, **_: Any) -> Value:
    """Clone a tensor; elements are copied only if their order in memory changes."""
    if isinstance(source, Lazy):
        return formula("{0}", [source], kind, kind.dtype)
    return source if source.strides == kind.strides else lowering.store(source, kind.strides)


def _where(lowering: Lowering, kind: Kind, mask: Value, if_true: Any, if_false: Any) -> Value:

    def load(body: Body, indices: Sequence[Index]) -> str:
        condition = element(body, mask, indices, torch.bool)
        taken = element(body, if_true, indices, kind.dtype)
        otherwise = element(body, if_false, indices, kind.dtype)
        return body.hold(f"{condition} ? {taken} : {otherwise}", kind.dtype)

    return Lazy(kind.shape, kind.dtype, load, 1 + weight_of([mask, if_true, if_false]))


# -- reads and writes by an index ------------------------------------------------------------------


def _flip(lowering: Lowering, kind: Kind, source: Value, axes: list[int]) -> Value:
    axes = axes_from_front(axes, len(source.shape)) if axes else []
    if isinstance(source, Stored):
        offset, strides = source.offset, [*source.strides]
        for axis in axes:
            offset += (source.shape[axis] - 1) * strides[axis]
            strides[axis] *= -1

        def load(body: Body, indices: Sequence[Index]) -> str:
            return body.load(source.buffer, linear(offset, strides, indices))
    else:

        def load(body: Body, indices: Sequence[Index]) -> str:
            at = [*indices]
            for axis in axes:
                at[axis] = Index(source.shape[axis] - 1).plus(at[axis], -1)
            return source.load(body, at)

    return Lazy(source.shape, source.dtype, load, source.weight)


def _embedding(lowering: Lowering, kind: Kind, table: Value, index: Value, *_: Any, **__: Any) -> Value:

    def load(body: Body, indices: Sequence[Index]) -> str:
        row = body.read_index(element(body, index, indices[:-1], torch.int64), table.shape[0])
        return table.load(body, [row, indices[-1]])

    # Just above LIGHT: rows that are used several times are read from the table once.
    return Lazy(kind.shape, kind.dtype, load, LIGHT + 1)


def _embedding_gradient(
    lowering: Lowering, kind: Kind, gradient: Value, index: Value, rows: int, padding: int, by_frequency: bool
) -> Value:
    """Sum the gradient's rows into the rows of the table that the index names."""
    if padding >= 0 or by_frequency:
        raise CannotGenerate("an embedding with a padding index or scaled by frequency")
    if not math.prod(gradient.shape):
        raise CannotGenerate("the gradient of an embedding of nothing")
    to = new(kind)

    def place(body: Body, indices: list[Index]) -> Index:
        *others, column = indices
        row = body.read_index(element(body, index, others, torch.int64), rows)
        return linear(0, to.strides, [row, column])

    summed = range(len(gradient.shape) - 1)
    lowering.loop(to, gradient, gradient.shape, place, how="sum", reduced=summed, is_scattered=True)
    return to


def _gather(lowering: Lowering, kind: Kind, source: Value, axis: int, index: Value, **_: Any) -> Value:
    axis %= max(1, len(source.shape))

    def load(body: Body, indices: Sequence[Index]) -> str:
        at = [*indices]
        at[axis] = body.read_index(element(body, index, indices, torch.int64), source.shape[axis])
        return source.load(body, at)

    return Lazy(kind.shape, kind.dtype, load, 2 + weight_of([source, index]))


def _scatter_add(lowering: Lowering, kind: Kind, source: Value, axis: int, index: Value, added: Value) -> Value:
    """Add numbers where an index says: few are looked through, many are summed in their order."""
    axis %= max(1, len(kind.shape))
    others = [number for number in range(len(kind.shape)) if number != axis]
    if index.shape[axis] > _SHORT_SCATTER or any(index.shape[other] != kind.shape[other] for other in others):
        to = new(kind)

        def place(body: Body, indices: list[Index]) -> Index:
            at = [*indices]
            at[axis] = body.read_index(element(body, index, indices, torch.int64), kind.shape[axis])
            return linear(0, to.strides, at)

        lowering.loop(to, added, index.shape, place, how="sum", reduced=(axis,), is_scattered=True)
        return formula("{0} + {1}", [source, to], kind, kind.dtype)

    def load(body: Body, indices: Sequence[Index]) -> str:
        total, zero = element(body, source, indices, kind.dtype), f"{TYPES[kind.dtype]}(0)"
        for term in range(index.shape[axis]):
            at = [*indices]
            at[axis] = Index(term)
            is_chosen = f"{index.load(body, at)} == {indices[axis].write()}"
            addend = element(body, added, at, kind.dtype)
            total = body.hold(f"{total} + ({is_chosen} ? {addend} : {zero})", kind.dtype)
        return total

    return Lazy(kind.shape, kind.dtype, load, 2 + weight_of([source, index, added]))


def _triangle(sign: str, lowering: Lowering, kind: Kind, source: Value, diagonal: int = 0) -> Value:
    """Keep the elements whose column is `sign` their row plus `diagonal`; zero the others."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        is_kept = f"{indices[-1].write()} {sign} {indices[-2].write()} + {diagonal}"
        taken = element(body, source, indices, kind.dtype)
        return body.hold(f"{is_kept} ? {taken} : {TYPES[kind.dtype]}(0)", kind.dtype)

    return Lazy(kind.shape, kind.dtype, load, 2 + source.weight)


# -- parts of tensors ------------------------------------------------------------------------------


def _stack(lowering: Lowering, kind: Kind, parts: list[Value], axis: int = 0) -> Value:
    to, axis = new(kind), axis % max(1, len(kind.shape))
    shape, strides = ((*by_axis[:axis], *by_axis[axis + 1 :]) for by_axis in (to.shape, to.strides))
    for number, part in enumerate(parts):
        lowering.copy(part, Stored(to.buffer, shape, strides, number * to.strides[axis]))
    return to


def _concatenate(lowering: Lowering, kind: Kind, parts: list[Value], axis: int = 0) -> Value:
    to, axis, start = new(kind), axis % max(1, len(kind.shape)), 0
    for part in parts:
        if len(part.shape) == len(kind.shape):  # else it is empty, [0]
            lowering.copy(part, sliced(to, axis, start, start + part.shape[axis]))
            start += part.shape[axis]
    return to


def _pad(lowering: Lowering, kind: Kind, source: Value, widths: list[int], number: float = 0) -> Value:
    """Pad a tensor with a number; negative widths cut elements off."""
    rank = len(source.shape)
    sides = [(0, 0)] * rank
    for pair in range(len(widths) // 2):
        sides[rank - 1 - pair] = widths[2 * pair], widths[2 * pair + 1]
    for axis, (before, after) in enumerate(sides):
        if before < 0 or after < 0:
            source = sliced(source, axis, max(0, -before), source.shape[axis] + min(0, after))
    return _within(lowering, kind, source, [(max(0, before), 1) for before, _ in sides], number)


def _slice_gradient(
    lowering: Lowering, kind: Kind, source: Value, sizes: list[int], axis: int, start: int | None, _: Any, step: int
) -> Value:
    """Write the gradient of a slice into zeros of the sliced tensor's shape."""
    axis %= len(sizes)
    starts = [(0, 1)] * len(sizes)
    starts[axis] = slice(start, None).indices(sizes[axis])[0], step
    return _within(lowering, kind, source, starts, 0)


def _select_gradient(lowering: Lowering, kind: Kind, source: Value, sizes: list[int], axis: int, index: int) -> Value:
    """Write the gradient of a selection into zeros of the whole tensor's shape."""
    axis %= len(sizes)
    if isinstance(source, Stored):
        shape, strides = ((*by_axis[:axis], 1, *by_axis[axis:]) for by_axis in (source.shape, source.strides))
        source = Stored(source.buffer, shape, strides, source.offset)
    else:
        like = torch.empty(source.shape, device="meta").unsqueeze(axis)
        source = view_of(source, tuple(like.shape), tuple(like.stride()), 0)
    starts = [(0, 1)] * len(sizes)
    starts[axis] = index % sizes[axis], 1
    return _within(lowering, kind, source, starts, 0)


def _within(lowering: Lowering, kind: Kind, source: Value, starts: Sequence[tuple[int, int]], number: float) -> Value:
    """Write a tensor into a larger one filled with a number; `starts`: start, step by axis."""
    if [*source.shape] == [*kind.shape]:
        return source
    inside = to = new(kind)
    for axis, (start, step) in enumerate(starts):
        count, size = source.shape[axis], kind.shape[axis]
        lowering.copy(number, sliced(inside, axis, 0, start))
        for phase in range(step):  # elements between those of the source, and after them
            first = start + phase + (count * step if not phase else 0)
            lowering.copy(number, sliced(inside, axis, first, size, step))
        inside = sliced(inside, axis, start, start + (count - 1) * step + 1, step)
    lowering.copy(source, inside)
    return to


# -- calls -----------------------------------------------------------------------------------------


def _add_product(
    lowering: Lowering, kind: Kind, addend: Value, left: Value, right: Value, *, alpha: float = 1, beta: float = 1
) -> Value:
    """Multiply matrices or batches of them, and add a tensor; the call adds a vector itself."""
    if (alpha, beta) != (1, 1):
        raise CannotGenerate("a product with factors")
    if isinstance(addend, Stored) and addend.shape == kind.shape[-1:] and addend.strides == (1,):
        return _product(lowering, kind, left, right, addend)
    product = _product(lowering, kind, left, right)
    return formula("{0} + {1}", [product, addend], kind, kind.dtype)


def _product(lowering: Lowering, kind: Kind, left: Value, right: Value, bias: Stored | None = None) -> Stored:
    if not kind.dtype.is_floating_point:
        raise CannotGenerate("a product of whole numbers")
    lefts, rights = (_batched(lowering.in_memory(factor)) for factor in (left, right))
    to = new(kind)
    if not lefts.shape[2]:
        raise CannotGenerate("a product of nothing")
    if kind.numel:
        batch = _batched(to)
        sizes = [*lefts.shape, rights.shape[2], *lefts.strides, *rights.strides, *batch.strides[:2]]
        lowering.steps.append(Call("product", [lefts, rights, bias], [batch], sizes))
    return to


def _batched(value: Stored) -> Stored:
    """Return a matrix as a batch of one; a batch stays as it is."""
    if len(value.shape) == 3:
        return value
    return Stored(value.buffer, (1, *value.shape), (0, *value.strides), value.offset)


def _spline(name: str, lowering: Lowering, kind: Kind, *operands: Value) -> tuple[Value, ...]:
    """Call the interpolation between learned knots, or its gradient by points and knots."""
    read = [_contiguous(lowering, operand) for operand in operands]
    *_, points, knots, _low, _scale = read
    alike = [points, knots] if name == "spline_gradient" else [points]
    written = [new(Kind(stored.shape, stored.strides, kind.dtype)) for stored in alike]
    if count := math.prod(points.shape):
        lowering.steps.append(Call(name, read, written, [count, math.prod(knots.shape)]))
    return tuple(written)


def _contiguous(lowering: Lowering, value: Value) -> Stored:
    """Return an operand in memory, its elements contiguous in the order of its axes."""
    stored = lowering.in_memory(value)
    axes = zip(stored.strides, contiguous_strides(stored.shape), stored.shape, strict=True)
    if any(stride != dense for stride, dense, size in axes if size > 1):
        return lowering.store(stored)
    return stored


RULES: Rules = {
    "clone": _clone,
    **dict.fromkeys(
        ("full", "full_like"), lambda lowering, kind, shape, number, **_: formula("{0}", [number], kind, kind.dtype)
    ),
    "where": _where,
    "masked_fill": lambda lowering, kind, source, mask, value: _where(lowering, kind, mask, value, source),
    **{name: partial(reduce, name) for name in ("sum", "mean", "amax", "amin", "all", "any")},
    **dict.fromkeys(("var", "var_mean"), var_mean),
    "cumsum": cumulative_sum,
    "flip": _flip,
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_gradient,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "tril": partial(_triangle, "<="),
    "triu": partial(_triangle, ">="),
    "cat": _concatenate,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "slice_backward": _slice_gradient,
    "select_backward": _select_gradient,
    **{name: _product if name in ("mm", "bmm") else _add_product for name in PRODUCTS},
    **{name: partial(_spline, name.removeprefix("graft::")) for name in SPLINES},
}


def knows(name: str) -> bool:
    """Return whether programs support the operation of this name, at least for some arguments."""
    return name in VIEWS or name in RULES or name == "copy_" or has_formula(out_of_place(name))
