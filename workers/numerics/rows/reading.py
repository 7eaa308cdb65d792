"""The reader of recordings: it turns the operations of a row function into formulas of single rows.

Each operation is given to its rule, in `algebra` or, composed of these, in `compositions`. A
function is refused (NotOfRows) if an operation has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.numerics.codegen.formulas import has_formula
from workers.numerics.rows.algebra import ROW_FORMULAS, Algebra, TensorFormula, require_last
from workers.numerics.rows.compositions import COMPOSITIONS, FILLS
from workers.numerics.rows.nodes import Graph, Level, Loop, Node, NotOfRows
from workers.numerics.simplifying import Operation, Slot

_COPIES = ("alias", "detach", "clone", "lift_fresh_copy")
_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "expand", "transpose")
"""Operations that keep the numbers, and those that also add, remove or move axes."""
_SPLITS = ("split", "split_with_sizes", "tensor_split")
_REDUCTIONS = ("sum", "mean", "amax", "amin")
_READ_BY_NAME = (*_REDUCTIONS, "where", "masked_fill", "loop_begin", "loop_end", "_to_copy", *_SPLITS)


class RecordingReader:
    """Reads recorded operations in their order; `tensors` maps each slot to its tensor."""

    def __init__(self, graph: Graph, tensors: Mapping[Slot, TensorFormula], dtype: torch.dtype) -> None:
        self._graph = graph
        self._dtype = dtype
        self.algebra = Algebra(graph, dtype)
        self.tensors: dict[Slot, TensorFormula] = dict(tensors)
        self._loops: list[Loop] = []

    def read(self, operations: Sequence[Operation]) -> None:
        """Add the results of these operations to `tensors`; raises NotOfRows."""
        for function, (positional, keywords), results in operations:
            name = operation_name(function)
            operands = [self.formula_of(operand) for operand in positional]
            if name == "loop_begin":  # the marks that `loops.iterate` records around one step
                made = self._begin_loop(*operands)
            elif name == "loop_end":
                made = self._end_loop(*operands)
            elif name in _SPLITS:
                made = self._split(name, *operands)
            else:
                made = [self._read_operation(function, name.removesuffix("_"), operands, keywords)]
            if len(made) != len(results):
                raise NotOfRows(f"{name} gives several results")
            self.tensors.update(zip(results, made, strict=True))

    def formula_of(self, operand: Any) -> Any:
        """Return the formula of a slot or constant, also in lists, or the operand itself."""
        if isinstance(operand, list):
            return [self.formula_of(part) for part in operand]
        if isinstance(operand, Slot):
            return self.tensors[operand]
        if not isinstance(operand, Tensor):
            return operand
        if operand.numel() != 1:
            raise NotOfRows("it reads a table of numbers")
        number = operand.item()
        return TensorFormula(tuple(operand.shape), operand.dtype, number, number)

    def _read_operation(
        self, function: Any, name: str, operands: list[Any], keywords: Mapping[str, Any]
    ) -> TensorFormula:
        if name in _COPIES:
            return operands[0]
        if name in _VIEWS and not isinstance(operands[-1], torch.dtype):
            # torch finds the shape: tensors of the device `meta` have no elements.
            source = operands[0]
            shape = function(torch.empty(source.shape, device="meta"), *operands[1:]).shape
            return self.algebra.reshape(source, shape)
        if name == "to" and isinstance(operands[1], torch.dtype):
            return self.algebra.convert(operands[0], operands[1])
        if name == "_to_copy":
            return self.algebra.convert(operands[0], keywords.get("dtype"))
        if name in FILLS:
            shape, number = FILLS[name](*operands)
            default = self._dtype if name in ("full", "scalar_tensor") else operands[0].dtype
            dtype = keywords.get("dtype") or default
            number = bool(number) if dtype == torch.bool else number
            return self.algebra.check(TensorFormula(tuple(shape), dtype, number, number))
        if name in _REDUCTIONS:
            return self.algebra.reduce(name, *operands[:3])
        if name in COMPOSITIONS:
            return COMPOSITIONS[name](self.algebra, *operands)
        return self.algebra.apply(name, *operands, **keywords)

    def _split(self, name: str, source: TensorFormula, sizes: int | list[int], axis: int = 0) -> list[TensorFormula]:
        whole = source.shape[axis]
        if name == "tensor_split" and isinstance(sizes, int):  # the number of parts
            sizes = whole // sizes
        require_last(source.shape, axis)
        if isinstance(sizes, int):
            sizes = [min(sizes, whole - start) for start in range(0, whole, sizes)]
        ends = itertools.accumulate(sizes, initial=0)
        return [self.algebra.select(source, -1, *ends_of) for ends_of in itertools.pairwise(ends)]

    # -- loops -------------------------------------------------------------------------------------

    def _begin_loop(self, state: list[TensorFormula], steps: int) -> list[TensorFormula]:
        if self._loops:
            raise NotOfRows("it has a loop within a loop")
        nodes = [Node("input", (), Level.ROW, name="state") for _ in state]
        self._loops.append(Loop(steps, [formula.visible for formula in state], nodes))
        return [
            TensorFormula(formula.shape, formula.dtype, node, node) for formula, node in zip(state, nodes, strict=True)
        ]

    def _end_loop(self, state: list[TensorFormula]) -> list[TensorFormula]:
        loop = self._loops.pop()
        for formula in state:
            if isinstance(formula.visible, Node) and formula.visible.level not in (Level.HEAD, Level.ROW):
                raise NotOfRows("its loop keeps more than numbers of a row")
            loop.results.append(formula.visible)
        nodes = loop.nodes = [Node("loop", (), Level.ROW, loop=loop) for _ in loop.results]
        return [
            TensorFormula(formula.shape, formula.dtype, node, node) for formula, node in zip(state, nodes, strict=True)
        ]


def operation_name(function: Any) -> str:
    """Return the name of an operation without its overload: `add` for `aten.add.Tensor`."""
    packet = getattr(function, "overloadpacket", None)
    name = packet.__name__ if packet else str(function)
    return f"bitwise_{name.strip('_')}" if name in ("__and__", "__or__", "__xor__") else name


def is_known(name: str, keywords: Mapping[str, Any]) -> bool:
    """Return whether an operation has a rule or a formula; `recording` divides others into such."""
    if keywords.get("approximate", "none") != "none":
        return False
    name = name.removesuffix("_")
    return (
        name in _READ_BY_NAME
        or any(name in table for table in (_COPIES, _VIEWS, FILLS, COMPOSITIONS, ROW_FORMULAS))
        or has_formula(name)
    )
