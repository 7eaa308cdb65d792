"""The reader of recordings, which turns the operations of a row function into formulas of single rows.

`recording` records the function on an example with QUERIES rows of KEYS keys. No other axis has these
lengths, so an axis is known by its length. A key is visible where the mask is true, and hidden elsewhere.
Native steps go through visible keys alone; `Spot.hidden` follows what a tensor holds at hidden keys, so that
a sum over all keys stays right. A function is refused (NotOfRows, in words that a user understands) if a row
needs the numbers of hidden keys or of other rows, or if an operation is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workers.numerics.fusion.formulas import COMPARISONS, formula_of, has_formula, take_operands
from workers.numerics.fusion.values import CannotFuse
from workers.numerics.rows.nodes import Graph, Level, Loop, Node, NotOfRows, Operand
from workers.numerics.simplifying import Operation, Slot

QUERIES, KEYS = 5, 32
"""The example's axes. KEYS is a multiple of 32: torch chooses some operations where rows fill registers."""
_MASKING = -1e8
"""A mask that fills with this number, or a lower one, is read as minus infinity: no logit comes near it."""

_ROW_FORMULAS = {
    "gelu": "{0} * normal({0})",
    "gelu_backward": "{0} * multiply_add({1}, normal_density({1}), normal({1}))",
    "silu": "{0} / ({T}(1) + exp(-{0}))",
    **{name: f"{name}({{0}})" for name in ("sinh", "cosh", "asinh", "acosh", "atan", "tan")},
}
"""Operation -> formula, where `fusion.formulas` has none or another; native/rows.hpp has these functions."""
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor")


@dataclass(frozen=True)
class Spot:
    """A tensor of the recording, given by the formulas of one of its entries."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    shown: Operand
    """The entry at a visible key."""
    hidden: Operand | None
    """The entry at a hidden key; None if it depends on the numbers that hidden keys have."""
    parts: tuple[Spot, ...] = ()
    """The pieces of a last axis that is several times KEYS long; `shown` and `hidden` then say nothing."""


class Reader:
    """Reads recorded operations one after another; `spots` maps each slot of the recording to its tensor."""

    def __init__(self, graph: Graph, spots: Mapping[Slot, Spot], dtype: torch.dtype) -> None:
        self._graph = graph
        self._dtype = dtype
        self.spots: dict[Slot, Spot] = dict(spots)
        self.count = graph.input("count", Level.ROW)
        """The number of a row's visible keys."""
        self.keys = graph.input("keys", Level.ROW)
        """The number of all its keys."""
        self._loops: list[Loop] = []

    def read(self, operations: Sequence[Operation]) -> None:
        """Add the results of these operations to `spots`; raises NotOfRows."""
        for function, arguments, results in operations:
            name = operation_name(function)
            positional, keywords = arguments
            if name == "loop_begin":  # the marks that `loops.iterate` records around one step
                spots = self._begin_loop(*positional)
            elif name == "loop_end":
                spots = self._end_loop(*positional)
            elif name in _SPLITS:
                source, sizes, *axis = positional
                spot = self.spot(source)
                if name == "tensor_split":  # it is given the number of parts, the others their size
                    sizes = spot.shape[axis[0] if axis else 0] // sizes
                spots = self._split(spot, sizes, *axis)
            else:
                spots = [self._read_operation(function, name.removesuffix("_"), positional, keywords)]
            if len(spots) != len(results):
                raise NotOfRows(f"{name} gives several results")
            self.spots.update(zip(results, spots, strict=True))

    def spot(self, operand: Any) -> Spot:
        """Return the spot of a slot, of a constant tensor with one entry, or of a number."""
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

    def _read_operation(self, function: Any, name: str, positional: list[Any], keywords: dict[str, Any]) -> Spot:
        if name in _COPIES:
            return self.spot(positional[0])
        if name in _VIEWS and not isinstance(positional[-1], torch.dtype):
            # torch finds the shape: tensors of the device `meta` have no elements.
            source = self.spot(positional[0])
            return self.reshape(source, function(torch.empty(source.shape, device="meta"), *positional[1:]).shape)
        if name == "to" and isinstance(positional[1], torch.dtype):
            return self._convert(self.spot(positional[0]), positional[1])
        if name == "_to_copy":
            return self._convert(self.spot(positional[0]), keywords.get("dtype"))
        if name in _FILLS:
            shape, number = _FILLS[name](self, *positional)
            dtype = keywords.get("dtype") or (self._dtype if name in ("full", "scalar_tensor") else None)
            dtype = dtype or self.spot(positional[0]).dtype
            number = bool(number) if dtype == torch.bool else number
            return self._check(Spot(tuple(shape), dtype, number, number))
        if name in _REDUCTIONS:
            return self.reduce(name, self.spot(positional[0]), *positional[1:3])
        if name in _COMPOSITIONS:
            return _COMPOSITIONS[name](self, *positional)
        return self.apply(name, *positional, function=function, **keywords)

    def apply(self, name: str, *positional: Any, function: Any = None, **keywords: Any) -> Spot:
        """Return the result of an operation that treats each number by itself."""
        if count := max((len(spot.parts) for spot in map(self._spot_of, positional) if spot), default=0):
            by_part = [[self._part_of(operand, n) for operand in positional] for n in range(count)]
            return side_by_side([self.apply(name, *operands, function=function, **keywords) for operands in by_part])
        places = [n for n, operand in enumerate(positional) if isinstance(operand, Slot | Tensor | Spot)]
        spots = {n: given if isinstance(given := positional[n], Spot) else self.spot(given) for n in places}
        if not spots:
            raise NotOfRows(f"{name} is given nothing that is of the rows")
        shape = _broadcast([spot.shape for spot in spots.values()])
        dtype = self._dtype_of(name, function, positional, keywords, spots)

        def entry_at(which: str) -> Operand | None:
            operands = [getattr(spots[n], which) if n in spots else number for n, number in enumerate(positional)]
            operands = [_UNKNOWN if one is None and n in spots else one for n, one in enumerate(operands)]
            entry = self._formula(name, operands, keywords, dtype)
            return None if entry is _UNKNOWN else entry

        shown = entry_at("shown")
        assert shown is not None
        has_keys = any(KEYS in spot.shape for spot in spots.values())
        return self._check(Spot(shape, dtype, shown, entry_at("hidden") if has_keys else shown))

    def _spot_of(self, operand: Any) -> Spot | None:
        return operand if isinstance(operand, Spot) else self.spot(operand) if isinstance(operand, Slot) else None

    def _part_of(self, operand: Any, number: int) -> Any:
        """Return a part of an operand that has parts, and any other operand as it is."""
        spot = self._spot_of(operand)
        return spot.parts[number] if spot and spot.parts else operand

    def _formula(self, name: str, arguments: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand | None:
        """Return the formula or constant of an operation on numbers; None if one that it needs is unknown."""
        if (known := _fold(name, arguments, self._graph)) is not _NOT_FOLDED:
            return known
        if any(argument is _UNKNOWN for argument in arguments):
            return None
        nodes = [argument for argument in arguments if isinstance(argument, Node)]
        if not nodes:
            return _compute(name, arguments, keywords, dtype)
        if name == "where":
            condition, taken, other = arguments
            return self._graph.formula("{0} ? {1} : {2}", (condition, taken, other), is_truth=dtype == torch.bool)
        if name == "masked_fill":
            return self._graph.formula("{1} ? {2} : {0}", tuple(arguments), is_truth=dtype == torch.bool)
        if name in COMPARISONS:
            if any(isinstance(one, Node) and one.is_truth for one in arguments) and not name.startswith("logical"):
                raise NotOfRows(f"it compares truth values by {name}")
            template = _LOGICAL.get(name, COMPARISONS[name])
            return self._graph.formula(template, tuple(take_operands(template, arguments)), is_truth=True)
        if name in _ROW_FORMULAS and keywords.get("approximate", "none") == "none":
            template, operands = _ROW_FORMULAS[name], take_operands(_ROW_FORMULAS[name], arguments)
        else:
            stand_ins = [_StandIn(argument) if isinstance(argument, Node) else argument for argument in arguments]
            try:
                template, operands = formula_of(name, stand_ins, keywords, dtype)
            except CannotFuse as error:
                raise NotOfRows(f"its operation {name} is not known to generated code") from error
            operands = [operand.node if isinstance(operand, _StandIn) else operand for operand in operands]
        if dtype != torch.bool:
            operands = [self._as_number(operand) for operand in operands]
        if dtype == torch.bool and name not in _BITWISE:
            raise NotOfRows(f"it computes truth values by {name}")
        return self._graph.formula(template, tuple(operands), is_truth=dtype == torch.bool)

    def _dtype_of(self, name: str, function: Any, positional: Sequence[Any], keywords: Any, spots: Any) -> torch.dtype:
        if name in COMPARISONS:
            return torch.bool
        dtypes = [spot.dtype for spot in spots.values()]
        if name in _BITWISE and set(dtypes) == {torch.bool}:
            return torch.bool
        if name in ("where", "masked_fill"):
            dtypes = [spot.dtype for n, spot in spots.items() if n != (0 if name == "where" else 1)]
            numbers = [operand for n, operand in enumerate(positional) if n not in spots]
            return torch.bool if set(dtypes) == {torch.bool} and not numbers else self._dtype
        return self._dtype

    def _convert(self, source: Spot, dtype: torch.dtype | None) -> Spot:
        if dtype is None or dtype == source.dtype:
            return source
        if dtype in (torch.float16, torch.bfloat16) or dtype == torch.bool:
            raise NotOfRows(f"it computes in {dtype}")
        if source.parts:
            return side_by_side([self._convert(part, dtype) for part in source.parts])
        if source.dtype != torch.bool:
            return Spot(source.shape, dtype, source.shown, source.hidden)
        return Spot(source.shape, dtype, self._as_number(source.shown), self._as_number(source.hidden))

    def _as_number(self, operand: Any) -> Any:
        """Return 1 or 0 for a truth value, and any other operand as it is."""
        if isinstance(operand, Node) and operand.is_truth:
            return self._graph.formula("{0} ? {1} : {2}", (operand, 1.0, 0.0))
        return float(operand) if isinstance(operand, bool) else operand

    def reshape(self, source: Spot, shape: Sequence[int]) -> Spot:
        """Return the same numbers with axes of length 1 added, removed or moved."""
        if source.parts:
            if not shape or shape[-1] != source.shape[-1]:
                raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
            return side_by_side([self.reshape(part, [*shape[:-1], KEYS]) for part in source.parts])
        return self._check(Spot(tuple(shape), source.dtype, source.shown, source.hidden))

    def _split(self, source: Spot, sizes: int | list[int], axis: int = 0) -> list[Spot]:
        _require_last(source.shape, axis)
        whole = source.shape[-1]
        sizes = [min(sizes, whole - n) for n in range(0, whole, sizes)] if isinstance(sizes, int) else sizes
        starts = [sum(sizes[:n]) for n in range(len(sizes))]
        return [self.select(source, -1, start, start + size) for start, size in zip(starts, sizes, strict=True)]

    def select(self, source: Spot, axis: int = 0, start: int | None = None, end: int | None = None) -> Spot:
        """Return a slice that consists of whole parts, or that is all of the axis."""
        whole = source.shape[axis]
        start, end = (slice(start, end).indices(whole))[:2]
        if (start, end) == (0, whole):
            return source
        _require_last(source.shape, axis)
        if start % KEYS or end % KEYS or not source.parts or end <= start:
            raise NotOfRows("it reads some of the keys of a row")
        return side_by_side(source.parts[start // KEYS : end // KEYS])

    def _check(self, spot: Spot) -> Spot:
        """Return the spot; raises NotOfRows unless its axes are rows and keys, in this order."""
        axes = [size for size in spot.shape if size != 1]
        if axes not in ([], [QUERIES], [KEYS], [QUERIES, KEYS]):
            raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
        return spot

    # -- sums and extremes -------------------------------------------------------------------------------------------

    def reduce(self, how: str, source: Spot, axes: Any = None, keepdim: bool = False) -> Spot:
        """Return the `sum`, `mean`, `amax` or `amin` along axes; None or [] are all axes."""
        if source.parts:
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over several parts of a row")
            reduced = self.reduce(how, source.parts[0], axes, keepdim)
            for part in source.parts[1:]:
                reduced = self.apply("add", reduced, self.reduce(how, part, axes, keepdim))
            return reduced
        rank = len(source.shape)
        axes = range(rank) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
        places = {axis % max(1, rank) for axis in axes}
        shape = [1 if n in places else size for n, size in enumerate(source.shape) if keepdim or n not in places]
        sizes = [source.shape[axis] for axis in places]
        reduced = source
        if KEYS in sizes:
            reduced = self._reduce_keys(how, reduced)
        if QUERIES in sizes:
            if KEYS in source.shape and KEYS not in sizes:
                raise NotOfRows("it mixes rows")
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over rows")
            total = self._graph.total(self._as_number(reduced.shown))
            reduced = Spot((), reduced.dtype, total, total)
        dtype = torch.int64 if source.dtype == torch.bool else source.dtype
        return self._check(Spot(tuple(shape), dtype, self._as_number(reduced.shown), self._as_number(reduced.hidden)))

    def _reduce_keys(self, how: str, source: Spot) -> Spot:
        shown, hidden = self._as_number(source.shown), self._as_number(source.hidden)
        if how in ("sum", "mean"):
            reduced = self._sum(shown, hidden)
            reduced = self._formula("div", [reduced, self.keys], {}, self._dtype) if how == "mean" else reduced
        else:
            reduced = self._extreme(how, shown, hidden)
        assert reduced is not None
        return Spot((), source.dtype, reduced, reduced)

    def _sum(self, shown: Operand, hidden: Operand | None) -> Operand:
        """Return the sum over visible keys, plus the number at a hidden key times how many there are."""
        if hidden is None:
            raise NotOfRows("it sums over keys that are not visible: mask before the sum")
        if not isinstance(hidden, Node) and math.isinf(hidden):
            raise NotOfRows("it sums over keys that are filled with an infinite number")
        if shown is hidden or (not isinstance(shown, Node) and shown == hidden):
            return self._multiply(shown, self.keys)
        is_key = isinstance(shown, Node) and shown.level == Level.KEY
        visible = self._graph.reduced("sum", shown) if is_key else self._multiply(shown, self.count)  # type: ignore[arg-type]
        if not isinstance(hidden, Node) and hidden == 0:
            return visible
        others = self._formula("sub", [self.keys, self.count], {}, self._dtype)
        return self._formula("add", [visible, self._multiply(hidden, others)], {}, self._dtype)  # type: ignore[return-value]

    def _multiply(self, left: Any, right: Any) -> Operand:
        return self._formula("mul", [left, right], {}, self._dtype)  # type: ignore[return-value]

    def _extreme(self, how: str, shown: Operand, hidden: Operand | None) -> Operand:
        neutral = -math.inf if how == "amax" else math.inf
        if hidden is None:
            raise NotOfRows("it takes an extreme over keys that are not visible: mask before")
        visible = shown
        if isinstance(shown, Node) and shown.level == Level.KEY:
            visible = self._graph.reduced("largest" if how == "amax" else "smallest", shown)
        if hidden == neutral or shown is hidden:
            return visible
        some_hidden = self._graph.formula("{0} < {1}", (self.count, self.keys), is_truth=True)
        other = self._graph.formula("{0} ? {1} : {2}", (some_hidden, hidden, neutral))
        return self._graph.formula("larger({0}, {1})" if how == "amax" else "smaller({0}, {1})", (visible, other))

    # -- loops -------------------------------------------------------------------------------------------------------

    def _begin_loop(self, state: list[Any], steps: int) -> list[Spot]:
        if self._loops:
            raise NotOfRows("it has a loop within a loop")
        spots = [self.spot(operand) for operand in state]
        states = self._graph.states(len(spots))
        self._loops.append(Loop(steps, [spot.shown for spot in spots], states))
        return [Spot(spot.shape, spot.dtype, node, node) for spot, node in zip(spots, states, strict=True)]

    def _end_loop(self, state: list[Any]) -> list[Spot]:
        spots, loop = [self.spot(operand) for operand in state], self._loops.pop()
        for spot in spots:
            if isinstance(spot.shown, Node) and spot.shown.level not in (Level.HEAD, Level.ROW):
                raise NotOfRows("its loop keeps more than numbers of a row")
            loop.results.append(spot.shown)
        return [
            Spot(spot.shape, spot.dtype, node, node)
            for spot, node in zip(spots, self._graph.results(loop), strict=True)
        ]


def side_by_side(parts: Sequence[Spot]) -> Spot:
    """Return spots, each of them KEYS long, concatenated along the last axis."""
    if len(parts) == 1:
        return parts[0]
    if any(part.shape[-1:] != (KEYS,) or part.parts for part in parts):
        raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
    first = parts[0]
    return Spot((*first.shape[:-1], KEYS * len(parts)), first.dtype, 0.0, None, tuple(parts))


@dataclass(frozen=True, eq=False)
class _StandIn:
    """A node as an operand of `formula_of`, where it is not a number."""

    node: Node


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*aligned, strict=True))


# -- folding -----------------------------------------------------------------------------------------------------------

_NOT_FOLDED, _UNKNOWN = object(), object()
"""The result of `_fold` where constants do not decide; the stand-in for a `Spot.hidden` that is
None."""
_LOGICAL = {"logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_not": "~{0}"}


def _equals(operand: Any, number: float) -> bool:
    return not isinstance(operand, Node) and isinstance(operand, int | float) and operand == number


def _fold(name: str, args: list[Any], graph: Graph) -> Any:
    """Return an operation's result if constants among its arguments decide it, otherwise _NOT_FOLDED."""
    if name == "where" and isinstance(args[0], bool):
        return args[1] if args[0] else args[2]
    if name == "where" and isinstance(args[1], int | float) and _equals(args[2], args[1]):
        return args[1]
    if name == "masked_fill" and isinstance(args[1], bool):
        value = args[2] if args[1] else args[0]
        return -math.inf if args[1] and isinstance(value, int | float) and value <= _MASKING else value
    if name in ("mul", "bitwise_and", "logical_and"):
        for one, other in (args[:2], args[1::-1]):
            if one is False or (name == "mul" and _equals(one, 0) and not isinstance(other, int | float)):
                return one
            if one is True and name != "mul":
                return other
            if name == "mul" and _equals(one, 1):
                return other
    if name in ("bitwise_or", "logical_or"):
        for one, other in (args[:2], args[1::-1]):
            if isinstance(one, bool):
                return True if one else other
    if name in ("bitwise_not", "logical_not") and isinstance(args[0], bool):
        return not args[0]
    if name in ("bitwise_not",) and isinstance(args[0], Node):
        return graph.formula("~{0}", (args[0],), is_truth=True)
    if name.endswith("_backward") and _equals(args[0], 0):
        return args[0]
    if name == "div" and (_equals(args[1], 1) or (_equals(args[0], 0) and not isinstance(args[1], int | float))):
        return args[0]
    if name == "add" and len(args) == 2 and (_equals(args[0], 0) or _equals(args[1], 0)):
        return args[1] if _equals(args[0], 0) else args[0]
    # Minus infinity masks a key and stays: an addend is taken to be finite, and a factor to be positive.
    if name in ("add", "sub", "mul", "div") and _equals(args[0], -math.inf) and not isinstance(args[1], int | float):
        return -math.inf
    if name in ("add", "mul") and _equals(args[1], -math.inf) and not isinstance(args[0], int | float):
        return -math.inf
    return _NOT_FOLDED


def _compute(name: str, args: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand:
    """Return the result of an operation on constants alone, computed by torch."""
    function = getattr(torch.ops.aten, name)
    first = [torch.tensor(arg, dtype=None if isinstance(arg, bool) else torch.float64) for arg in args[:1]]
    others = [
        torch.tensor(arg, dtype=None if isinstance(arg, bool) else torch.float64)
        if isinstance(arg, bool | int | float) and name not in ("clamp", "threshold_backward")
        else arg
        for arg in args[1:]
    ]
    result = function(*first, *others, **{k: v for k, v in keywords.items() if k in ("alpha", "min", "max")})
    return result.item()


# -- operations that have a rule of their own --------------------------------------------------------------------------


_COPIES = ("alias", "detach", "clone", "lift_fresh_copy")
_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "expand", "transpose")
"""Operations that keep the numbers, and those that also add, remove or move axes."""

_FILLS: dict[str, Callable[..., tuple[Sequence[int], float]]] = {
    "full": lambda reader, shape, number: (shape, number),
    "scalar_tensor": lambda reader, number: ((), number),
    "zeros_like": lambda reader, like: (reader.spot(like).shape, 0.0),
    "ones_like": lambda reader, like: (reader.spot(like).shape, 1.0),
    "full_like": lambda reader, like, number: (reader.spot(like).shape, number),
    "new_zeros": lambda reader, like, shape: (shape, 0.0),
    "new_ones": lambda reader, like, shape: (shape, 1.0),
    "new_full": lambda reader, like, shape, number: (shape, number),
}
"""Operation that fills a tensor with one number -> shape and number."""


def _exponentials(reader: Reader, source: Any) -> tuple[Spot, Spot, Spot]:
    """Return a row's largest number, the exponentials of the differences from it, and their sum."""
    spot = source if isinstance(source, Spot) else reader.spot(source)
    top = reader.reduce("amax", spot, -1, True)
    powers = reader.apply("exp", reader.apply("sub", spot, top))
    return top, powers, reader.reduce("sum", powers, -1, True)


def _require_last(shape: tuple[int, ...], axis: Any) -> None:
    """Raise NotOfRows unless the axis is the last one, of a row's keys."""
    axis = axis[0] if isinstance(axis, list) else axis
    if axis % len(shape) != len(shape) - 1:
        raise NotOfRows("it mixes rows")


def _softmax(reader: Reader, source: Any, axis: int, *_: Any) -> Spot:
    _require_last(reader.spot(source).shape, axis)
    powers, total = _exponentials(reader, source)[1:]
    return reader.apply("div", powers, total)


def _softmax_backward(reader: Reader, gradient: Any, result: Any, axis: int, *_: Any) -> Spot:
    inner = reader.reduce("sum", reader.apply("mul", gradient, result), -1, True)
    return reader.apply("mul", result, reader.apply("sub", gradient, inner))


def _log_softmax(reader: Reader, source: Any, axis: int, *_: Any) -> Spot:
    _require_last(reader.spot(source).shape, axis)
    top, _powers, total = _exponentials(reader, source)
    return reader.apply("sub", reader.apply("sub", source, top), reader.apply("log", total))


def _log_softmax_backward(reader: Reader, gradient: Any, result: Any, axis: int, *_: Any) -> Spot:
    total = reader.reduce("sum", reader.spot(gradient), -1, True)
    return reader.apply("sub", gradient, reader.apply("mul", reader.apply("exp", result), total))


def _logsumexp(reader: Reader, source: Any, axis: Any, keepdim: bool = False) -> Spot:
    _require_last(reader.spot(source).shape, axis)
    top, _powers, total = _exponentials(reader, source)
    result = reader.apply("add", top, reader.apply("log", total))
    return result if keepdim else reader.reshape(result, result.shape[:-1])


def _cat(reader: Reader, sources: list[Any], axis: int = 0) -> Spot:
    spots = [reader.spot(source) for source in sources]
    _require_last(spots[0].shape, axis)
    return side_by_side([part for spot in spots for part in spot.parts or (spot,)])


def _slice(reader: Reader, source: Any, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Spot:
    if step != 1:
        raise NotOfRows("it reads some of the keys of a row")
    return reader.select(reader.spot(source), axis, start, end)


def _slice_backward(reader: Reader, gradient: Any, sizes: list[int], axis: int, start: int, end: int, _: int) -> Spot:
    spot = reader.spot(gradient)
    start, end = (slice(start, end).indices(sizes[axis]))[:2]
    if (start, end) == (0, sizes[axis]):
        return spot
    _require_last(tuple(sizes), axis)
    zeros = Spot((*spot.shape[:-1], KEYS), spot.dtype, 0.0, 0.0)
    before, after = [zeros] * (start // KEYS), [zeros] * ((sizes[axis] - end) // KEYS)
    return side_by_side([*before, *(spot.parts or (spot,)), *after])


_COMPOSITIONS: dict[str, Callable[..., Spot]] = {
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
"""Operation -> its rule, made of the reader's methods."""


_SPLITS = ("split", "split_with_sizes", "tensor_split")
_REDUCTIONS = ("sum", "mean", "amax", "amin")
_READ_BY_NAME = (*_REDUCTIONS, "where", "masked_fill", "loop_begin", "loop_end", "_to_copy", *_SPLITS)


def operation_name(function: Any) -> str:
    """Return the name of an operation without its overload: `add` for `aten.add.Tensor`."""
    packet = getattr(function, "overloadpacket", None)
    name = packet.__name__ if packet else str(function)
    return f"bitwise_{name.strip('_')}" if name in ("__and__", "__or__", "__xor__") else name


def is_known(name: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether an operation has a rule or a formula; `recording` divides many others into such."""
    if keywords.get("approximate", "none") != "none":
        return False
    name = name.removesuffix("_")
    return (
        name in _READ_BY_NAME
        or any(name in table for table in (_COPIES, _VIEWS, _FILLS, _COMPOSITIONS, _ROW_FORMULAS))
        or has_formula(name)
    )
