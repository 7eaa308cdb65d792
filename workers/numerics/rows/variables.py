"""Variables of generated C++: their scopes and names, and the text of numbers and formulas."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from workers.numerics.codegen.values import spell
from workers.numerics.rows.nodes import Node, Operand


class Scope:
    """A block of C++ statements, which also knows the variables of the blocks around it."""

    def __init__(self, parent: Scope | None = None, known: Mapping[Node, str] | None = None) -> None:
        self.lines: list[str] = []
        self.known: dict[Node, str] = dict(known or {})
        self._parent = parent

    def find(self, node: Node) -> str | None:
        """Return the expression of a known node, or None."""
        return self.known.get(node) or (self._parent.find(node) if self._parent else None)


class Names:
    """Names of C++ variables, and the spelling of numbers and formulas.

    Letters: g an input; h, r, k and t a number of the head, a row, a key or a total; in a pass t is
    an accumulator and x its next number; s is a loop's state.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._next = 0

    def new(self, letter: str) -> str:
        self._next += 1
        return f"{letter}{self._next}"

    def spell(self, number: float) -> str:
        return spell(number, self._dtype)

    def of(self, operand: Operand, scope: Scope) -> str:
        if not isinstance(operand, Node):
            return f"number({self.spell(float(operand))})"
        expression = scope.find(operand)
        assert expression, "operands are computed before what needs them"
        return expression

    def declare_given(self, given: Mapping[Node, str], scope: Scope) -> None:
        for node, expression in given.items():
            scope.known[node] = self.new("g")
            scope.lines.append(f"const N {scope.known[node]} = {expression};")

    def declare(self, node: Node, scope: Scope) -> str:
        """Declare a variable for a formula of known operands, and return its name."""
        operands = [self.of(operand, scope) for operand in node.operands]
        name = scope.known[node] = self.new("hrkt"[node.level])
        kind = "auto" if node.is_truth else "N"
        scope.lines.append(f"const {kind} {name} = {node.what.format(*operands, T='number')};")
        return name
