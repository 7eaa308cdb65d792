"""Tensors of rows, each given by the formulas of one of its entries, and the operations on them.

A function is recorded on an example with QUERIES rows of KEYS keys. No other axis has these
lengths, so an axis is known by its length. A key is visible where the mask is true, hidden
elsewhere. Native steps go through visible keys alone; `TensorFormula.hidden` follows what a tensor
holds at hidden keys, so that sums over all keys stay right. A function is refused (NotOfRows, in a
user's words) if a row needs the numbers of hidden keys or of other rows. Masked addends are assumed
to be finite and factors positive (`folding`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workers.numerics.codegen.formulas import COMPARISONS, formula_of, take_operands
from workers.numerics.codegen.values import CannotGenerate
from workers.numerics.rows.folding import NOT_FOLDED, UNKNOWN, compute, fold
from workers.numerics.rows.nodes import Graph, Level, Node, NotOfRows, Operand

QUERIES, KEYS = 5, 32
"""The example's axes. torch chooses some operations where rows fill registers: KEYS is 32."""

ROW_FORMULAS = {
    "gelu": "{0} * normal({0})",
    "gelu_backward": "{0} * multiply_add({1}, normal_density({1}), normal({1}))",
    "silu": "{0} / ({T}(1) + exp(-{0}))",
    **{name: f"{name}({{0}})" for name in ("sinh", "cosh", "asinh", "acosh", "atan", "tan")},
}
"""Operation -> formula that `codegen.formulas` lacks or has otherwise (native/rows.hpp)."""
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_not", "bitwise_xor")
_LOGICAL = {"logical_and": "{0} & {1}", "logical_or": "{0} | {1}", "logical_not": "~{0}"}


@dataclass(frozen=True)
class TensorFormula:
    """A tensor of the recording, given by the formulas of one of its entries."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    visible: Operand
    hidden: Operand | None
    """The entry at a hidden key; None if it depends on the numbers of hidden keys."""
    parts: tuple[TensorFormula, ...] = ()
    """The pieces of a last axis of several times KEYS; `visible` and `hidden` are then unused."""


class Algebra:
    """Operations on tensors of rows, whose formulas are nodes of a graph."""

    def __init__(self, graph: Graph, dtype: torch.dtype) -> None:
        self.graph = graph
        self.dtype = dtype
        self.visible_keys = graph.input("count", Level.ROW)
        """The number of a row's visible keys."""
        self.all_keys = graph.input("keys", Level.ROW)
        """The number of all its keys."""

    def apply(self, name: str, *operands: Any, **keywords: Any) -> TensorFormula:
        """Return the result of an elementwise operation on tensors and numbers."""
        tensors = {n: operand for n, operand in enumerate(operands) if isinstance(operand, TensorFormula)}
        if count := max((len(tensor.parts) for tensor in tensors.values()), default=0):
            parts = [operand.parts if n in tensors else () for n, operand in enumerate(operands)]
            pieces = [split or [operand] * count for split, operand in zip(parts, operands, strict=True)]
            by_part = zip(*pieces, strict=True)
            return side_by_side([self.apply(name, *of_part, **keywords) for of_part in by_part])
        if not tensors:
            raise NotOfRows(f"{name} is given nothing that is of the rows")
        shape = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in tensors.values())))
        dtype = self._dtype_of(name, operands, tensors)

        def entry_at(which: str) -> Operand | None:
            entries = [getattr(operand, which) if n in tensors else operand for n, operand in enumerate(operands)]
            entries = [UNKNOWN if entry is None and n in tensors else entry for n, entry in enumerate(entries)]
            entry = self._combine(name, entries, keywords, dtype)
            return None if entry is UNKNOWN else entry

        visible = entry_at("visible")
        assert visible is not None
        has_keys = any(KEYS in tensor.shape for tensor in tensors.values())
        hidden = entry_at("hidden") if has_keys else visible
        return self.check(TensorFormula(shape, dtype, visible, hidden))

    def _combine(self, name: str, arguments: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand | None:
        """Return the formula or constant of an operation on numbers; None if it is unknown."""
        if (known := fold(name, arguments, self.graph)) is not NOT_FOLDED:
            return known
        if any(argument is UNKNOWN for argument in arguments):
            return None
        nodes = [argument for argument in arguments if isinstance(argument, Node)]
        if not nodes:
            return compute(name, arguments, keywords, dtype)
        is_truth = dtype == torch.bool
        if name == "where":
            return self.graph.formula("{0} ? {1} : {2}", tuple(arguments), is_truth=is_truth)
        if name == "masked_fill":
            return self.graph.formula("{1} ? {2} : {0}", tuple(arguments), is_truth=is_truth)
        if name in COMPARISONS:
            if any(node.is_truth for node in nodes) and not name.startswith("logical"):
                raise NotOfRows(f"it compares truth values by {name}")
            template = _LOGICAL.get(name, COMPARISONS[name])
            return self.graph.formula(template, tuple(take_operands(template, arguments)), is_truth=True)
        if name in ROW_FORMULAS and keywords.get("approximate", "none") == "none":
            template, operands = ROW_FORMULAS[name], take_operands(ROW_FORMULAS[name], arguments)
        else:
            stand_ins = [_StandIn(argument) if isinstance(argument, Node) else argument for argument in arguments]
            try:
                template, operands = formula_of(name, stand_ins, keywords, dtype)
            except CannotGenerate as error:
                raise NotOfRows(f"its operation {name} is not known to generated code") from error
            operands = [operand.node if isinstance(operand, _StandIn) else operand for operand in operands]
        if not is_truth:
            operands = [self._as_number(operand) for operand in operands]
        elif name not in _BITWISE:
            raise NotOfRows(f"it computes truth values by {name}")
        return self.graph.formula(template, tuple(operands), is_truth=is_truth)

    def _dtype_of(self, name: str, operands: Sequence[Any], tensors: Mapping[int, TensorFormula]) -> torch.dtype:
        """Return a result's type: bool, or the type that all other numbers are computed in."""
        if name in COMPARISONS:
            return torch.bool
        condition = {"where": 0, "masked_fill": 1}.get(name)
        chosen = {tensor.dtype for n, tensor in tensors.items() if n != condition}
        is_whole = name in _BITWISE if condition is None else len(tensors) == len(operands)
        return torch.bool if is_whole and chosen == {torch.bool} else self.dtype

    def convert(self, source: TensorFormula, dtype: torch.dtype | None) -> TensorFormula:
        if dtype is None or dtype == source.dtype:
            return source
        if dtype in (torch.float16, torch.bfloat16) or dtype == torch.bool:
            raise NotOfRows(f"it computes in {dtype}")
        if source.parts:
            return side_by_side([self.convert(part, dtype) for part in source.parts])
        visible, hidden = source.visible, source.hidden
        if source.dtype == torch.bool:
            visible, hidden = self._as_number(visible), self._as_number(hidden)
        return TensorFormula(source.shape, dtype, visible, hidden)

    def _as_number(self, operand: Any) -> Any:
        """Return 1 or 0 for a truth value, and any other operand as it is."""
        if isinstance(operand, Node) and operand.is_truth:
            return self.graph.formula("{0} ? {1} : {2}", (operand, 1.0, 0.0))
        return float(operand) if isinstance(operand, bool) else operand

    def reshape(self, source: TensorFormula, shape: Sequence[int]) -> TensorFormula:
        """Return the same numbers with axes of length 1 added, removed or moved."""
        if source.parts:
            if not shape or shape[-1] != source.shape[-1]:
                raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
            return side_by_side([self.reshape(part, [*shape[:-1], KEYS]) for part in source.parts])
        return self.check(TensorFormula(tuple(shape), source.dtype, source.visible, source.hidden))

    def select(
        self, source: TensorFormula, axis: int = 0, start: int | None = None, end: int | None = None
    ) -> TensorFormula:
        """Return a slice that consists of whole parts, or that is all of the axis."""
        whole = source.shape[axis]
        start, end, _ = slice(start, end).indices(whole)
        if (start, end) == (0, whole):
            return source
        require_last(source.shape, axis)
        if start % KEYS or end % KEYS or not source.parts or end <= start:
            raise NotOfRows("it reads some of the keys of a row")
        return side_by_side(source.parts[start // KEYS : end // KEYS])

    def check(self, formula: TensorFormula) -> TensorFormula:
        """Return the formula; raises NotOfRows unless its axes are rows and keys, in this order."""
        axes = [size for size in formula.shape if size != 1]
        if axes not in ([], [QUERIES], [KEYS], [QUERIES, KEYS]):
            raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
        return formula

    # -- sums and extremes -------------------------------------------------------------------------

    def reduce(self, how: str, source: TensorFormula, axes: Any = None, keepdim: bool = False) -> TensorFormula:
        """Return the `sum`, `mean`, `amax` or `amin` along axes; None or [] are all axes."""
        if source.parts:
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over several parts of a row")
            reduced = self.reduce(how, source.parts[0], axes, keepdim)
            for part in source.parts[1:]:
                reduced = self.apply("add", reduced, self.reduce(how, part, axes, keepdim))
            return reduced
        rank = len(source.shape)
        axes = [axes] if isinstance(axes, int) else axes or range(rank)
        places = {axis % max(1, rank) for axis in axes}
        kept = [1 if n in places else size for n, size in enumerate(source.shape)]
        shape = tuple(size for n, size in enumerate(kept) if keepdim or n not in places)
        sizes = [source.shape[axis] for axis in places]
        reduced = source
        if KEYS in sizes:
            reduced = self._reduce_keys(how, reduced)
        if QUERIES in sizes:
            if KEYS in source.shape and KEYS not in sizes:
                raise NotOfRows("it mixes rows")
            if how != "sum":
                raise NotOfRows(f"it takes the {how} over rows")
            total = self.graph.total(self._as_number(reduced.visible))
            reduced = TensorFormula((), reduced.dtype, total, total)
        dtype = torch.int64 if source.dtype == torch.bool else source.dtype
        visible, hidden = self._as_number(reduced.visible), self._as_number(reduced.hidden)
        return self.check(TensorFormula(shape, dtype, visible, hidden))

    def _reduce_keys(self, how: str, source: TensorFormula) -> TensorFormula:
        visible, hidden = self._as_number(source.visible), self._as_number(source.hidden)
        is_sum = how in ("sum", "mean")
        reduced = self._sum(visible, hidden) if is_sum else self._extreme(how, visible, hidden)
        if how == "mean":
            reduced = self._combine("div", [reduced, self.all_keys], {}, self.dtype)
        assert reduced is not None
        return TensorFormula((), source.dtype, reduced, reduced)

    def _sum(self, visible: Operand, hidden: Operand | None) -> Operand:
        """Return the sum over visible keys, plus the number at a hidden key times their count."""
        if hidden is None:
            raise NotOfRows("it sums over keys that are not visible: mask before the sum")
        if not isinstance(hidden, Node) and math.isinf(hidden):
            raise NotOfRows("it sums over keys that are filled with an infinite number")
        if visible is hidden or (not isinstance(visible, Node) and visible == hidden):
            return self._multiply(visible, self.all_keys)
        if isinstance(visible, Node) and visible.level == Level.KEY:
            total = self.graph.reduced("sum", visible)
        else:
            total = self._multiply(visible, self.visible_keys)
        if not isinstance(hidden, Node) and hidden == 0:
            return total
        others = self._combine("sub", [self.all_keys, self.visible_keys], {}, self.dtype)
        return self._combine("add", [total, self._multiply(hidden, others)], {}, self.dtype)  # type: ignore[return-value]

    def _multiply(self, left: Any, right: Any) -> Operand:
        return self._combine("mul", [left, right], {}, self.dtype)  # type: ignore[return-value]

    def _extreme(self, how: str, visible: Operand, hidden: Operand | None) -> Operand:
        neutral = -math.inf if how == "amax" else math.inf
        if hidden is None:
            raise NotOfRows("it takes an extreme over keys that are not visible: mask before")
        extreme = visible
        if isinstance(visible, Node) and visible.level == Level.KEY:
            extreme = self.graph.reduced("largest" if how == "amax" else "smallest", visible)
        if hidden == neutral or visible is hidden:
            return extreme
        keys = self.visible_keys, self.all_keys
        some_hidden = self.graph.formula("{0} < {1}", keys, is_truth=True)
        other = self.graph.formula("{0} ? {1} : {2}", (some_hidden, hidden, neutral))
        name = "larger" if how == "amax" else "smaller"
        return self.graph.formula(f"{name}({{0}}, {{1}})", (extreme, other))


def require_last(shape: tuple[int, ...], axis: Any) -> None:
    """Raise NotOfRows unless the axis is the last one, that of a row's keys."""
    axis = axis[0] if isinstance(axis, list) else axis
    if axis % len(shape) != len(shape) - 1:
        raise NotOfRows("it mixes rows")


def side_by_side(parts: Sequence[TensorFormula]) -> TensorFormula:
    """Return tensors, each of them KEYS long, concatenated along the last axis."""
    if len(parts) == 1:
        return parts[0]
    if any(part.shape[-1:] != (KEYS,) or part.parts for part in parts):
        raise NotOfRows("it mixes rows, or has axes that are none of rows and keys")
    shape = *parts[0].shape[:-1], KEYS * len(parts)
    return TensorFormula(shape, parts[0].dtype, 0.0, None, tuple(parts))


@dataclass(frozen=True, eq=False)
class _StandIn:
    """A node as an operand of `formula_of`."""

    node: Node
