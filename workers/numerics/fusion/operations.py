"""The rule of each of ATen's operations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from workers.numerics.codegen.formulas import COMPARISONS, common_type, formula_of, take_operands
from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind
from workers.numerics.fusion.cuts import Place
from workers.numerics.fusion.rules import (
    SHORT_SCATTER,
    SMALL_PRODUCT,
    Choice,
    Embedded,
    Gathered,
    Joined,
    Pointwise,
    Product,
    Reduction,
    Scattered,
    View,
)
from workers.numerics.fusion.writing import Rule, Scope, Writer
from workers.numerics.simplifying import Operation, Slot


class Call(NamedTuple):
    """A recorded operation, and the number of one of its results."""

    name: str
    positional: list[Any]
    keywords: dict[str, Any]
    number: int
    result: Kind
    kinds: Mapping[Slot, Kind]

    def kind(self, operand: Any) -> Kind:
        """Return the kind of an operand, a slot or a constant tensor."""
        return Kind.of(operand) if isinstance(operand, Tensor) else self.kinds[operand]

    def shape(self, operand: Any) -> tuple[int, ...]:
        return self.kind(operand).shape

    def argument(self, number: int, default: Any) -> Any:
        """Return a positional argument that may be left out."""
        return self.positional[number] if len(self.positional) > number else default

    def axis(self, axis: int, operand: Any) -> int:
        """Return the number of an operand's axis; a negative axis counts from the end."""
        return axis % max(1, len(self.shape(operand)))


def _reshaped(call: Call) -> Rule:
    source = call.positional[0]
    if call.kind(source).dtype != call.result.dtype:
        raise CannotGenerate("the same memory as numbers of another kind")
    return View(source, Writer.reshape)


def _permuted(call: Call) -> Rule:
    source, rank = call.positional[0], len(call.shape(call.positional[0]))
    order = list(range(rank))
    if call.name == "permute":
        order = [axis % rank for axis in call.positional[1]]
    elif rank:
        first, second = (0, rank - 1) if call.name == "t" else (axis % rank for axis in call.positional[1:3])
        order[first], order[second] = order[second], order[first]

    def move(writer: Writer, scope: Scope, place: Place, shape: tuple[int, ...]) -> Place:
        axes = writer.axes(scope, place)
        moved = [""] * rank
        for axis, source_axis in enumerate(order):
            moved[source_axis] = axes[axis]
        touched = {axis for axis, other in enumerate(order) if axis != other}
        return writer.move(place, shape, tuple(moved), touched)

    return View(source, move)


def _shifted(source: Any, axis: int, start: int, step: int) -> Rule:
    def move(writer: Writer, scope: Scope, place: Place, shape: tuple[int, ...]) -> Place:
        if place.shape == shape:
            return place
        axes = list(writer.axes(scope, place))
        expression = axes[axis] if step == 1 else f"{axes[axis]} * {step}"
        axes[axis] = writer.hold_index(scope, f"{start} + {expression}" if start else expression)
        return writer.move(place, shape, tuple(axes), {axis})

    return View(source, move)


def _selected(call: Call) -> Rule:
    source = call.positional[0]
    axis = call.axis(call.argument(1, 0), source)
    index = call.number if call.name == "unbind" else call.positional[2] % call.shape(source)[axis]

    def move(writer: Writer, scope: Scope, place: Place, shape: tuple[int, ...]) -> Place:
        axes = writer.axes(scope, place)
        return writer.move(place, shape, (*axes[:axis], str(index), *axes[axis:]), {axis})

    return View(source, move)


def _sliced(call: Call) -> Rule:
    source, axis = call.positional[0], call.axis(call.argument(1, 0), call.positional[0])
    start, _, _ = slice(call.argument(2, None), None).indices(call.shape(source)[axis])
    return _shifted(source, axis, start, call.argument(4, 1))


def _of_split(call: Call) -> Rule:
    source, sizes = call.positional[0], call.positional[1]
    axis = call.axis(call.argument(2, 0), source)
    start = sizes * call.number if isinstance(sizes, int) else sum(sizes[: call.number])
    return _shifted(source, axis, start, 1)


def _reduced(call: Call) -> Rule:
    source, shape = call.positional[0], call.shape(call.positional[0])
    axes = call.argument(1, None)
    axes = [axes] if isinstance(axes, int) else axes or range(len(shape))
    reduced = tuple(sorted(axis % max(1, len(shape)) for axis in axes))
    if not reduced or 0 in [shape[axis] for axis in reduced]:
        raise CannotGenerate("a sum of nothing")
    if call.name in ("amax", "amin") and not call.result.dtype.is_floating_point:
        raise CannotGenerate("an extreme of whole numbers")
    return Reduction(source, reduced, bool(call.argument(2, False)), call.name, call.result.dtype)


def _multiplied(call: Call) -> Rule:
    if len(call.positional) != 2:
        raise CannotGenerate("a product of another kind")
    left, right = call.positional
    multiplications = math.prod(call.shape(left)[1:]) * call.shape(right)[2]
    if multiplications > SMALL_PRODUCT or not call.result.dtype.is_floating_point:
        raise CannotGenerate("a large product")
    return Product(left, right, call.shape(left)[2], call.result.dtype)


def _scattered(call: Call) -> Rule:
    source, axis, index, added = call.positional[:4]
    axis = call.axis(axis, source)
    shape, index_shape = call.shape(source), call.shape(index)
    others = [number for number in range(len(shape)) if number != axis]
    if index_shape[axis] > SHORT_SCATTER or any(shape[number] != index_shape[number] for number in others):
        raise CannotGenerate("a long scatter")
    return Scattered(source, axis, index, added, call.result.dtype)


def _concatenated(call: Call) -> Rule:
    parts = call.positional[0]
    if any(len(call.shape(part)) != len(call.result.shape) for part in parts):
        raise CannotGenerate("a joint of other shapes")
    axis = call.axis(call.argument(1, 0), parts[0])
    ends = list(itertools.accumulate(call.shape(part)[axis] for part in parts))
    starts = [0, *ends[:-1]]
    pieces = [(part, start, end, 1) for part, start, end in zip(parts, starts, ends, strict=True) if end > start]
    return Joined(axis, pieces, 0, call.result.dtype)


def _slice_backward(call: Call) -> Rule:
    source, sizes, axis, start, end, step = call.positional
    axis %= len(sizes)
    first, last, _ = slice(start, end).indices(sizes[axis])
    return Joined(axis, [(source, first, last, step)], 0, call.result.dtype)


def _select_backward(call: Call) -> Rule:
    source, sizes, axis, index = call.positional
    axis = axis % len(sizes)
    first = index % sizes[axis]
    return Joined(axis, [(source, first, first + 1, 1)], 0, call.result.dtype)


def _padded(call: Call) -> Rule:
    source, widths = call.positional[:2]
    shape = call.shape(source)
    sides = list(zip(widths[::2], widths[1::2], strict=False))
    padded = [number for number, side in enumerate(sides) if any(side)]
    if len(padded) != 1 or min(widths) < 0:
        raise CannotGenerate("padding of several axes")
    axis, before = len(shape) - 1 - padded[0], sides[padded[0]][0]
    piece = source, before, before + shape[axis], 1
    return Joined(axis, [piece], call.argument(2, 0), call.result.dtype)


MAKERS: dict[str, Callable[[Call], Rule]] = {
    **dict.fromkeys(
        ("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach", "_reshape_alias"), _reshaped
    ),
    "expand": lambda call: View(call.positional[0], Writer.broadcast),
    **dict.fromkeys(("transpose", "permute", "t"), _permuted),
    "slice": _sliced,
    **dict.fromkeys(("select", "unbind"), _selected),
    **dict.fromkeys(("split", "split_with_sizes"), _of_split),
    "where": lambda call: Choice(*call.positional[:3], dtype=call.result.dtype),
    "masked_fill": lambda call: Choice(*(call.positional[n] for n in (1, 2, 0)), dtype=call.result.dtype),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), _reduced),
    "bmm": _multiplied,
    "gather": lambda call: Gathered(
        call.positional[0], call.axis(call.positional[1], call.positional[0]), call.positional[2]
    ),
    "embedding": lambda call: Embedded(*call.positional[:2]),
    "scatter_add": _scattered,
    "cat": _concatenated,
    "slice_backward": _slice_backward,
    "select_backward": _select_backward,
    "constant_pad_nd": _padded,
}
"""Name of an operation, without its overload -> its rule."""


def rule_of(operation: Operation, number: int, kinds: Mapping[Slot, Kind]) -> Rule:
    """Return the rule of a recorded operation's result of this number; raises CannotGenerate."""
    function: Any = operation.function
    packet = getattr(function, "overloadpacket", None)
    name = packet.__name__ if packet else ""
    positional, keywords = operation.arguments
    result = kinds.get(operation.results[number])
    if result is None or result.dtype not in TYPES:
        raise CannotGenerate(name)
    if name in MAKERS:
        return MAKERS[name](Call(name, positional, keywords, number, result, kinds))
    if name in COMPARISONS:
        operands = take_operands(COMPARISONS[name], positional)
        return Pointwise(COMPARISONS[name], operands, common_type(operands, kinds))
    template, operands = formula_of(name, positional, keywords, result.dtype)
    return Pointwise(template, operands, result.dtype)
