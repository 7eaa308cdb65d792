"""Formulas of a row: the numbers that a generated function computes, each once.

Legend: a *head* number is the same for all rows, a *row* number belongs to one row, a *key* number
to one key of a row, and a *total* is a sum over all rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from workers.numerics.codegen.formulas import cost_of


class NotOfRows(Exception):  # noqa: N818 - nothing is wrong: the function is traced instead
    """A function cannot be written as one of single rows; the message says why in a few words."""


class Level(IntEnum):
    """The level that a number belongs to, as in the module's legend."""

    HEAD = 0
    ROW = 1
    KEY = 2
    TOTAL = 3


@dataclass(frozen=True, eq=False)
class Node:
    """A number that a generated function computes or is given."""

    what: str
    """`input`, `sum`, `largest`, `smallest`, `total`, `loop`, or a formula (`codegen.formulas`)."""
    operands: tuple[Operand, ...]
    level: Level
    is_truth: bool = False
    name: str = ""
    loop: Loop | None = None

    @property
    def cost(self) -> int:
        """The rough cost of computing the number from its operands (`cost_of`)."""
        return 0 if self.what in _NO_FORMULAS else cost_of(self.what)


Operand = Node | float | bool
_NO_FORMULAS = ("input", "sum", "largest", "smallest", "total", "loop")


@dataclass(eq=False)
class Loop:
    """Row numbers that are replaced `steps` times, or until none changes."""

    steps: int
    starts: list[Operand]
    states: list[Node]
    """Inputs of the body that stand for the numbers before a step."""
    results: list[Operand] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    """The numbers after the last step, for the nodes that follow the loop."""


class Graph:
    """The maker of nodes; equal nodes are made once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Node] = {}

    def input(self, name: str, level: Level) -> Node:
        return self._keep(Node("input", (), level, name=name))

    def formula(self, template: str, operands: tuple[Operand, ...], *, is_truth: bool = False) -> Node:
        """Return a formula of operands, at least one of which is a node."""
        levels = {operand.level for operand in operands if isinstance(operand, Node)}
        if Level.TOTAL in levels and levels & {Level.ROW, Level.KEY}:
            raise NotOfRows("one row needs sums over all rows")
        return self._keep(Node(template, operands, max(levels), is_truth))

    def reduced(self, how: str, source: Node) -> Node:
        """Return the `sum`, `largest` or `smallest` of a number over the visible keys of a row."""
        return self._keep(Node(how, (source,), Level.ROW))

    def total(self, source: Operand) -> Operand:
        """Return the sum of a row number over all rows."""
        if not isinstance(source, Node) and source == 0:
            return 0.0
        return self._keep(Node("total", (source,), Level.TOTAL))

    def again(self, node: Node, operands: tuple[Operand, ...]) -> Node:
        """Return the node with the same formula of other operands."""
        return self._keep(Node(node.what, operands, node.level, node.is_truth, node.name, node.loop))

    def _keep(self, node: Node) -> Node:
        ids = [id(source) if isinstance(source, Node) else (type(source), repr(source)) for source in node.operands]
        return self._known.setdefault((node.what, node.name, tuple(ids)), node)


def operands_of(node: Node) -> Iterator[Node]:
    """Yield a node's operands; of a loop's result, its starts and its body's results."""
    for operand in (*node.loop.starts, *node.loop.results) if node.loop else node.operands:
        if isinstance(operand, Node):
            yield operand


def reachable(roots: Any) -> list[Node]:
    """Return all nodes that the roots need, each after its operands."""
    nodes: dict[Node, None] = {}
    pending: list[tuple[Node, bool]] = [(root, False) for root in roots if isinstance(root, Node)]
    while pending:
        node, done = pending.pop()
        if done:
            nodes[node] = None
        elif node not in nodes:
            pending.append((node, True))
            pending += [(operand, False) for operand in operands_of(node) if operand not in nodes]
    return list(nodes)


def dependents(loop: Loop) -> set[Node]:
    """Return a loop's states, and the nodes that its body computes from them."""
    nodes = set(loop.states)
    for node in reachable(loop.results):
        if any(source in nodes for source in operands_of(node)):
            nodes.add(node)
    return nodes


def prerequisites(node: Node) -> list[Node]:
    """Return the nodes needed before a node; for a loop's, its starts and its body's inputs."""
    if not node.loop:
        return [*operands_of(node)]
    inner = dependents(node.loop)
    outside = [source for source in reachable(node.loop.results) if source not in inner]
    return [*(start for start in node.loop.starts if isinstance(start, Node)), *outside]
