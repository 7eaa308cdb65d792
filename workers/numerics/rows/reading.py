"""From a recording of a function on a small example to formulas of single rows.

The example has QUERIES rows of KEYS keys, sizes that nothing else has, so that an axis is known by its length. Native
steps go through visible keys alone, where the mask is true; what a tensor holds at the others is followed aside
(`Spot.hidden`), so that sums over all keys mean the same. A function whose rows need the numbers of invisible keys, of
other rows, or an operation that is not known is refused (NotOfRows), in words that a user understands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.numerics.fusion.formulas import COMPARISONS, formula_of, has_formula
from workers.numerics.fusion.values import CannotFuse
from workers.numerics.rows.nodes import Graph, Level, Loop, Node, NotOfRows, Operand
from workers.numerics.simplifying import Operation, Slot

QUERIES, KEYS = 5, 32
"""Of the example. Some operations of torch are chosen where rows fill registers: KEYS is a multiple of 32."""
_CLOSED = -1e8
"""What is filled with so little, or less, is taken for minus infinity: no logit comes near it."""

_RENAMED = {
    "gelu": "{0} * normal({0})",
    "gelu_backward": "{0} * multiply_add({1}, normal_density({1}), normal({1}))",
    "silu": "{0} / ({T}(1) + exp(-{0}))",
    **{name: f"{name}({{0}})" for name in ("sinh", "cosh", "asinh", "acosh", "atan", "tan")},
}
_TRUTHS = ("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor")


@dataclass(frozen=True)
class Spot:
    """A tensor of the recording."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shown: Operand
    """At visible keys."""
    hidden: Operand | None
    """At the others; None: it depends on what stands there."""
    parts: tuple[Spot, ...] = ()
    """Where its last axis is KEYS several times, each of these in turn; they say what it holds."""


class Reader:
    """Reads operations one after another; `spots` knows what each slot is."""

    def __init__(self, graph: Graph, spots: Mapping[Slot, Spot], dtype: torch.dtype) -> None:
        self._graph = graph
        self._dtype = dtype
        self.spots: dict[Slot, Spot] = dict(spots)
        self.count = graph.input("count", Level.ROW)
        self.keys = graph.input("keys", Level.ROW)
        self._loops: list[Loop] = []

    def read(self, operations: Sequence[Operation]) -> None:
        """Learn what the results of these operations are."""
        for function, arguments, results in operations:
            name = operation_name(function)
            positional, keywords = arguments
            if name == "loop_begin":
                found = self._begin_loop(*positional)
            elif name == "loop_end":
                found = self._end_loop(*positional)
            elif name in _SPLITS:
                source, sizes, *axis = positional
                spot = self.spot(source)
                if name == "tensor_split":  # into so many parts
                    sizes = spot.shape[axis[0] if axis else 0] // sizes
                found = self._split(spot, sizes, *axis)
            else:
                found = [self._result(function, name.removesuffix("_"), positional, keywords)]
            if len(found) != len(results):
                raise NotOfRows(f"{name} gives several results")
            self.spots.update(zip(results, found, strict=True))

    def spot(self, operand: Any) -> Spot:
        """Return a tensor or a number as a spot."""
        if isinstance(operand, Slot):
            return self.spots[operand]
        if isinstance(operand, Tensor):
            if operand.numel() != 1:
                raise NotOfRows("it reads a table of numbers")
            number = operand.item()
            return Spot(tuple(operand.shape), operand.dtype, number, number)
        kind = torch.bool if isinstance(operand, bool) else torch.int64 if isinstance(operand, int) else self._dtype
        return Spot((), kind, operand, operand)

    # -- operations ------------------------------------------------------------------------------------------------

    def _result(self, function: Any, name: str, positional: list[Any], keywords: dict[str, Any]) -> Spot:
        if name in _SHAPED:
            source = self.spot(positional[0])
            return self.reshaped(source, _SHAPED[name](source.shape, *positional[1:]))
        if name == "to" and isinstance(positional[1], torch.dtype):
            return self._converted(self.spot(positional[0]), positional[1])
        if name == "_to_copy":
            return self._converted(self.spot(positional[0]), keywords.get("dtype"))
        if name in _FILLED:
            shape, number = _FILLED[name](self, *positional)
            dtype = keywords.get("dtype") or (self._dtype if name in ("full", "scalar_tensor") else None)
            dtype = dtype or self.spot(positional[0]).dtype
            number = bool(number) if dtype == torch.bool else number
            return self._checked(Spot(tuple(shape), dtype, number, number))
        if name in _REDUCED:
            return self.reduced(name, self.spot(positional[0]), *positional[1:3])
        if name in _COMPOSED:
            return _COMPOSED[name](self, *positional)
        return self.apply(name, *positional, function=function, **keywords)

    def apply(self, name: str, *positional: Any, function: Any = None, **keywords: Any) -> Spot:
        """Return an operation on each number by itself."""
        if count := max((len(one.parts) for one in map(self._spot_of, positional) if one), default=0):
            each = [[self._part(one, n) for one in positional] for n in range(count)]
            return side_by_side([self.apply(name, *own, function=function, **keywords) for own in each])
        places = [n for n, one in enumerate(positional) if isinstance(one, Slot | Tensor | Spot)]
        spots = {n: one if isinstance(one := positional[n], Spot) else self.spot(one) for n in places}
        if not spots:
            raise NotOfRows(f"{name} is given nothing that is of the rows")
        shape = _broadcast([one.shape for one in spots.values()])
        dtype = self._dtype_of(name, function, positional, keywords, spots)

        def part(which: str) -> Operand | None:
            own = [getattr(spots[n], which) if n in spots else one for n, one in enumerate(positional)]
            own = [_UNKNOWN if one is None and n in spots else one for n, one in enumerate(own)]
            found = self._formula(name, own, keywords, dtype)
            return None if found is _UNKNOWN else found

        shown = part("shown")
        assert shown is not None
        return self._checked(Spot(shape, dtype, shown, part("hidden") if _has_keys(spots.values()) else shown))

    def _spot_of(self, operand: Any) -> Spot | None:
        return operand if isinstance(operand, Spot) else self.spot(operand) if isinstance(operand, Slot) else None

    def _part(self, operand: Any, number: int) -> Any:
        """Return a part of an operand that has parts, and any other as it is."""
        spot = self._spot_of(operand)
        return spot.parts[number] if spot and spot.parts else operand

    def _formula(self, name: str, own: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand | None:
        if (known := _folded(name, own, self._graph)) is not _NOTHING:
            return known
        if any(one is _UNKNOWN for one in own):
            return None
        nodes = [one for one in own if isinstance(one, Node)]
        if not nodes:
            return _computed(name, own, keywords, dtype)
        if name == "where":
            condition, one, other = own
            return self._graph.formula("{0} ? {1} : {2}", (condition, one, other), is_truth=dtype == torch.bool)
        if name == "masked_fill":
            return self._graph.formula("{1} ? {2} : {0}", tuple(own), is_truth=dtype == torch.bool)
        if name in COMPARISONS:
            if any(isinstance(one, Node) and one.is_truth for one in own) and not name.startswith("logical"):
                raise NotOfRows(f"it compares truth values by {name}")
            template = _LOGICAL.get(name, COMPARISONS[name])
            return self._graph.formula(template, tuple(own[: 2 if "{1}" in template else 1]), is_truth=True)
        if name in _RENAMED and keywords.get("approximate", "none") == "none":
            template, operands = _RENAMED[name], own[: 2 if "{1}" in _RENAMED[name] else 1]
        else:
            stand_ins = [_StandIn(one) if isinstance(one, Node) else one for one in own]
            try:
                template, operands = formula_of(name, stand_ins, keywords, dtype)
            except CannotFuse as error:
                raise NotOfRows(f"its operation {name} is not known to generated code") from error
            operands = [one.node if isinstance(one, _StandIn) else one for one in operands]
        if dtype != torch.bool:
            operands = [self._as_number(one) for one in operands]
        if dtype == torch.bool and name not in _TRUTHS:
            raise NotOfRows(f"it computes truth values by {name}")
        return self._graph.formula(template, tuple(operands), is_truth=dtype == torch.bool)

    def _dtype_of(self, name: str, function: Any, positional: Sequence[Any], keywords: Any, spots: Any) -> torch.dtype:
        if name in COMPARISONS:
            return torch.bool
        dtypes = [one.dtype for one in spots.values()]
        if name in _TRUTHS and set(dtypes) == {torch.bool}:
            return torch.bool
        if name in ("where", "masked_fill"):
            dtypes = [one.dtype for n, one in spots.items() if n != (0 if name == "where" else 1)]
            numbers = [one for n, one in enumerate(positional) if n not in spots]
            return torch.bool if set(dtypes) == {torch.bool} and not numbers else self._dtype
        return self._dtype

    def _converted(self, source: Spot, dtype: torch.dtype | None) -> Spot:
        if dtype is None or dtype == source.dtype:
            return source
        if dtype in (torch.float16, torch.bfloat16) or dtype == torch.bool:
            raise NotOfRows(f"it computes in {dtype}")
        if source.parts:
            return side_by_side([self._converted(one, dtype) for one in source.parts])
        if source.dtype != torch.bool:
            return Spot(source.shape, dtype, source.shown, source.hidden)
        return Spot(source.shape, dtype, self._as_number(source.shown), self._as_number(source.hidden))

    def _as_number(self, one: Any) -> Any:
        if isinstance(one, Node) and one.is_truth:
            return self._graph.formula("{0} ? {1} : {2}", (one, 1.0, 0.0))
        return float(one) if isinstance(one, bool) else one

    def reshaped(self, source: Spot, shape: Sequence[int]) -> Spot:
        """Return the same numbers with other axes of length 1."""
        if source.parts:
            if not shape or shape[-1] != source.shape[-1]:
                raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
            return side_by_side([self.reshaped(one, [*shape[:-1], KEYS]) for one in source.parts])
        return self._checked(Spot(tuple(shape), source.dtype, source.shown, source.hidden))

    def _split(self, source: Spot, sizes: int | list[int], axis: int = 0) -> list[Spot]:
        _over_last(source.shape, axis)
        whole = source.shape[-1]
        sizes = [min(sizes, whole - n) for n in range(0, whole, sizes)] if isinstance(sizes, int) else sizes
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        return [self.sliced(source, -1, start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def sliced(self, source: Spot, axis: int = 0, start: int | None = None, end: int | None = None) -> Spot:
        """Return whole parts of a spot, or all of it."""
        whole = source.shape[axis]
        start, end = (slice(start, end).indices(whole))[:2]
        if (start, end) == (0, whole):
            return source
        _over_last(source.shape, axis)
        if start % KEYS or end % KEYS or not source.parts or end <= start:
            raise NotOfRows("it reads some of the keys of a row")
        return side_by_side(source.parts[start // KEYS : end // KEYS])

    def _checked(self, spot: Spot) -> Spot:
        """Return the spot, if its axes are rows and keys, in this order."""
        axes = [size for size in spot.shape if size != 1]
        if axes not in ([], [QUERIES], [KEYS], [QUERIES, KEYS]):
            raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
        return spot

    # -- sums and extremes -------------------------------------------------------------------------------------------

    def reduced(self, how: str, source: Spot, axes: Any = None, kept: bool = False) -> Spot:
        """`sum`, `mean`, `amax` or `amin` along axes."""
        if source.parts:
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over several parts of a row")
            found = self.reduced(how, source.parts[0], axes, kept)
            for one in source.parts[1:]:
                found = self.apply("add", found, self.reduced(how, one, axes, kept))
            return found
        rank = len(source.shape)
        axes = range(rank) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
        own = {axis % max(1, rank) for axis in axes}
        shape = [1 if n in own else size for n, size in enumerate(source.shape) if kept or n not in own]
        sizes = [source.shape[axis] for axis in own]
        found = source
        if KEYS in sizes:
            found = self._over_keys(how, found)
        if QUERIES in sizes:
            if KEYS in source.shape and KEYS not in sizes:
                raise NotOfRows("it mixes rows")
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over rows")
            total = self._graph.total(self._as_number(found.shown))
            found = Spot((), found.dtype, total, total)
        dtype = torch.int64 if source.dtype == torch.bool else source.dtype
        return self._checked(Spot(tuple(shape), dtype, self._as_number(found.shown), self._as_number(found.hidden)))

    def _over_keys(self, how: str, source: Spot) -> Spot:
        shown, hidden = self._as_number(source.shown), self._as_number(source.hidden)
        if how in ("sum", "mean"):
            found = self._sum(shown, hidden)
            found = self._formula("div", [found, self.keys], {}, self._dtype) if how == "mean" else found
        else:
            found = self._extreme(how, shown, hidden)
        assert found is not None
        return Spot((), source.dtype, found, found)

    def _sum(self, shown: Operand, hidden: Operand | None) -> Operand:
        if hidden is None:
            raise NotOfRows("it sums over keys that are not visible: mask before the sum")
        if not isinstance(hidden, Node) and math.isinf(hidden):
            raise NotOfRows("it sums over keys that are filled with an infinite number")
        if shown is hidden or (not isinstance(shown, Node) and shown == hidden):
            return self._product(shown, self.keys)
        is_key = isinstance(shown, Node) and shown.level == Level.KEY
        found = self._graph.reduced("sum", shown) if is_key else self._product(shown, self.count)  # type: ignore[arg-type]
        if not isinstance(hidden, Node) and hidden == 0:
            return found
        others = self._formula("sub", [self.keys, self.count], {}, self._dtype)
        return self._formula("add", [found, self._product(hidden, others)], {}, self._dtype)  # type: ignore[return-value]

    def _product(self, one: Any, other: Any) -> Operand:
        return self._formula("mul", [one, other], {}, self._dtype)  # type: ignore[return-value]

    def _extreme(self, how: str, shown: Operand, hidden: Operand | None) -> Operand:
        end = -math.inf if how == "amax" else math.inf
        if hidden is None:
            raise NotOfRows("it takes an extreme over keys that are not visible: mask before")
        found = shown
        if isinstance(shown, Node) and shown.level == Level.KEY:
            found = self._graph.reduced("largest" if how == "amax" else "smallest", shown)
        if hidden == end or shown is hidden:
            return found
        are_some = self._graph.formula("{0} < {1}", (self.count, self.keys), is_truth=True)
        other = self._graph.formula("{0} ? {1} : {2}", (are_some, hidden, end))
        return self._graph.formula("larger({0}, {1})" if how == "amax" else "smaller({0}, {1})", (found, other))

    # -- loops -------------------------------------------------------------------------------------------------------

    def _begin_loop(self, state: list[Any], steps: int) -> list[Spot]:
        if self._loops:
            raise NotOfRows("it has a loop within a loop")
        spots = [self.spot(one) for one in state]
        states = self._graph.states(len(spots))
        self._loops.append(Loop(steps, [one.shown for one in spots], states))
        return [Spot(one.shape, one.dtype, node, node) for one, node in zip(spots, states, strict=True)]

    def _end_loop(self, state: list[Any]) -> list[Spot]:
        spots, loop = [self.spot(one) for one in state], self._loops.pop()
        for one in spots:
            if isinstance(one.shown, Node) and one.shown.level not in (Level.HEAD, Level.ROW):
                raise NotOfRows("its loop keeps more than numbers of a row")
            loop.results.append(one.shown)
        return [
            Spot(one.shape, one.dtype, node, node) for one, node in zip(spots, self._graph.results(loop), strict=True)
        ]


def side_by_side(parts: Sequence[Spot]) -> Spot:
    """Return a spot of parts whose last axes follow one another, all of them KEYS long."""
    if len(parts) == 1:
        return parts[0]
    if any(one.shape[-1:] != (KEYS,) or one.parts for one in parts):
        raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
    first = parts[0]
    return Spot((*first.shape[:-1], KEYS * len(parts)), first.dtype, 0.0, None, tuple(parts))


@dataclass(frozen=True, eq=False)
class _StandIn:
    """A node where a formula is looked up: not a number."""

    node: Node


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*wide, strict=True))


def _has_keys(spots: Any) -> bool:
    return any(KEYS in one.shape for one in spots)


# -- folding -----------------------------------------------------------------------------------------------------------

_NOTHING, _UNKNOWN = object(), object()
_LOGICAL = {"logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_not": "~{0}"}


def _is(one: Any, number: float) -> bool:
    return not isinstance(one, Node) and isinstance(one, int | float) and one == number


def _folded(name: str, own: list[Any], graph: Graph) -> Any:
    """Return the value of an operation that follows from constants among its operands."""
    if name == "where" and isinstance(own[0], bool):
        return own[1] if own[0] else own[2]
    if name == "where" and isinstance(own[1], int | float) and _is(own[2], own[1]):
        return own[1]
    if name == "masked_fill" and isinstance(own[1], bool):
        value = own[2] if own[1] else own[0]
        return -math.inf if own[1] and isinstance(value, int | float) and value <= _CLOSED else value
    if name in ("mul", "bitwise_and", "logical_and"):
        for one, other in (own[:2], own[1::-1]):
            if one is False or (name == "mul" and _is(one, 0) and not isinstance(other, int | float)):
                return one
            if one is True and name != "mul":
                return other
            if name == "mul" and _is(one, 1):
                return other
    if name in ("bitwise_or", "logical_or"):
        for one, other in (own[:2], own[1::-1]):
            if isinstance(one, bool):
                return True if one else other
    if name in ("bitwise_not", "logical_not") and isinstance(own[0], bool):
        return not own[0]
    if name in ("bitwise_not",) and isinstance(own[0], Node):
        return graph.formula("~{0}", (own[0],), is_truth=True)
    if name.endswith("_backward") and _is(own[0], 0):
        return own[0]
    if name == "div" and (_is(own[1], 1) or (_is(own[0], 0) and not isinstance(own[1], int | float))):
        return own[0]
    if name == "add" and len(own) == 2 and (_is(own[0], 0) or _is(own[1], 0)):
        return own[1] if _is(own[0], 0) else own[0]
    # What is closed stays closed, whatever finite number it meets; a factor of it is taken to be positive.
    if name in ("add", "sub", "mul", "div") and _is(own[0], -math.inf) and not isinstance(own[1], int | float):
        return -math.inf
    if name in ("add", "mul") and _is(own[1], -math.inf) and not isinstance(own[0], int | float):
        return -math.inf
    return _NOTHING


def _computed(name: str, own: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand:
    function = getattr(torch.ops.aten, name)
    numbers = [torch.tensor(one, dtype=None if isinstance(one, bool) else torch.float64) for one in own[:1]]
    others = [
        torch.tensor(one, dtype=None if isinstance(one, bool) else torch.float64)
        if isinstance(one, bool | int | float) and name not in ("clamp", "threshold_backward")
        else one
        for one in own[1:]
    ]
    found = function(*numbers, *others, **{k: v for k, v in keywords.items() if k in ("alpha", "min", "max")})
    return found.item()


# -- operations that have a rule of their own --------------------------------------------------------------------------


def _unsqueezed(shape: tuple[int, ...], axis: int) -> list[int]:
    place = axis % (len(shape) + 1)
    return [*shape[:place], 1, *shape[place:]]


def _squeezed(shape: tuple[int, ...], axes: Any = None) -> list[int]:
    rank = max(1, len(shape))
    own = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    places = {axis % rank for axis in own}
    return [size for n, size in enumerate(shape) if not (n in places and size == 1)]


def _viewed(shape: tuple[int, ...], new: Sequence[int]) -> list[int]:
    left = math.prod(shape) // max(1, -math.prod(new)) if -1 in new else 1
    return [left if size == -1 else size for size in new]


def _expanded(shape: tuple[int, ...], new: Sequence[int], implicit: bool = False) -> list[int]:
    before = len(new) - len(shape)
    return [shape[n - before] if size == -1 else size for n, size in enumerate(new)]


def _transposed(shape: tuple[int, ...], one: int, other: int) -> list[int]:
    new = list(shape)
    new[one], new[other] = new[other], new[one]
    return new


_SHAPED: dict[str, Callable[..., Sequence[int]]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias"), _viewed),
    **dict.fromkeys(("alias", "detach", "clone", "lift_fresh_copy"), lambda shape, *_: shape),
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "expand": _expanded,
    "transpose": _transposed,
}


_FILLED: dict[str, Callable[..., tuple[Sequence[int], float]]] = {
    "full": lambda reader, shape, number: (shape, number),
    "scalar_tensor": lambda reader, number: ((), number),
    "zeros_like": lambda reader, like: (reader.spot(like).shape, 0.0),
    "ones_like": lambda reader, like: (reader.spot(like).shape, 1.0),
    "full_like": lambda reader, like, number: (reader.spot(like).shape, number),
    "new_zeros": lambda reader, like, shape: (shape, 0.0),
    "new_ones": lambda reader, like, shape: (shape, 1.0),
    "new_full": lambda reader, like, shape, number: (shape, number),
}
"""Operations that fill a tensor with one number -> shape and number."""


def _exponentials(reader: Reader, source: Any) -> tuple[Spot, Spot, Spot]:
    """Largest number of the row, exponentials of the differences from it, their sum."""
    spot = source if isinstance(source, Spot) else reader.spot(source)
    top = reader.reduced("amax", spot, -1, True)
    powers = reader.apply("exp", reader.apply("sub", spot, top))
    return top, powers, reader.reduced("sum", powers, -1, True)


def _over_last(shape: tuple[int, ...], axis: Any) -> None:
    axis = axis[0] if isinstance(axis, list) else axis
    if axis % len(shape) != len(shape) - 1:
        raise NotOfRows("it mixes rows")


def _softmax(reader: Reader, source: Any, axis: int, *_: Any) -> Spot:
    _over_last(reader.spot(source).shape, axis)
    powers, total = _exponentials(reader, source)[1:]
    return reader.apply("div", powers, total)


def _softmax_backward(reader: Reader, gradient: Any, result: Any, axis: int, *_: Any) -> Spot:
    inner = reader.reduced("sum", reader.apply("mul", gradient, result), -1, True)
    return reader.apply("mul", result, reader.apply("sub", gradient, inner))


def _log_softmax(reader: Reader, source: Any, axis: int, *_: Any) -> Spot:
    _over_last(reader.spot(source).shape, axis)
    top, _powers, total = _exponentials(reader, source)
    return reader.apply("sub", reader.apply("sub", source, top), reader.apply("log", total))


def _log_softmax_backward(reader: Reader, gradient: Any, result: Any, axis: int, *_: Any) -> Spot:
    inner = reader.reduced("sum", reader.spot(gradient), -1, True)
    return reader.apply("sub", gradient, reader.apply("mul", reader.apply("exp", result), inner))


def _logsumexp(reader: Reader, source: Any, axis: Any, kept: bool = False) -> Spot:
    _over_last(reader.spot(source).shape, axis)
    top, _powers, total = _exponentials(reader, source)
    found = reader.apply("add", top, reader.apply("log", total))
    return found if kept else reader.reshaped(found, found.shape[:-1])


def _cat(reader: Reader, sources: list[Any], axis: int = 0) -> Spot:
    spots = [reader.spot(one) for one in sources]
    _over_last(spots[0].shape, axis)
    return side_by_side([part for one in spots for part in one.parts or (one,)])


def _slice(reader: Reader, source: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Spot:
    if step != 1:
        raise NotOfRows("it reads some of the keys of a row")
    return reader.sliced(reader.spot(source), axis, start, end)


def _slice_backward(reader: Reader, gradient: Any, sizes: list[int], axis: int, start: int, end: int, _: int) -> Spot:
    spot = reader.spot(gradient)
    start, end = (slice(start, end).indices(sizes[axis]))[:2]
    if (start, end) == (0, sizes[axis]):
        return spot
    _over_last(tuple(sizes), axis)
    nothing = Spot((*spot.shape[:-1], KEYS), spot.dtype, 0.0, 0.0)
    before, after = [nothing] * (start // KEYS), [nothing] * ((sizes[axis] - end) // KEYS)
    return side_by_side([*before, *(spot.parts or (spot,)), *after])


_COMPOSED: dict[str, Callable[..., Spot]] = {
    "cat": _cat,
    "narrow": lambda reader, source, axis, start, length: _slice(reader, source, axis, start, start + length),
    "slice": _slice,
    "slice_backward": _slice_backward,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp,
}


_SPLITS = ("split", "split_with_sizes", "tensor_split")
_REDUCED = ("sum", "mean", "amax", "amin")
_OWN = (*_REDUCED, "where", "masked_fill", "loop_begin", "loop_end", "_to_copy", *_SPLITS)


def operation_name(function: Any) -> str:
    """Return the name of an operation as torch lists it, without that of its overload."""
    packet = getattr(function, "overloadpacket", None)
    name = packet.__name__ if packet else str(function)
    return f"bitwise_{name.strip('_')}" if name in ("__and__", "__or__", "__xor__") else name


def is_known(name: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether an operation has a rule or a formula; one that has none may be made of others that have."""
    if keywords.get("approximate", "none") != "none":
        return False
    name = name.removesuffix("_")
    return name in _OWN or any(name in table for table in (_SHAPED, _FILLED, _COMPOSED, _RENAMED)) or has_formula(name)
