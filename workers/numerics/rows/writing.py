"""The writer of formulas of rows as C++ over vector registers (workers/numerics/native/rows.hpp).

A generated function goes through rows, and through the keys of each row in passes. A pass computes
sums over keys, or stores outputs; what needs a sum comes in a later pass. An expensive number of
keys that several passes need is stored by the first one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from workers.numerics.rows.nodes import Level, Loop, Node, Operand, dependents, operands_of, prerequisites, reachable
from workers.numerics.rows.variables import Names, Scope

_EXPENSIVE = 6
"""Key numbers that cost more (`cost_of`: a sum 1, a quotient 8) are stored between passes."""
_STARTS = {"sum": 0.0, "largest": -math.inf, "smallest": math.inf}
_JOINS = {"sum": "{0} += {1};", "largest": "{0} = {1} > {0} ? {1} : {0};", "smallest": "{0} = {1} < {0} ? {1} : {0};"}
"""The start of an accumulator {0}, and the statement that adds the number {1} to it."""


@dataclass(frozen=True)
class Function:
    """A generated function: the numbers that it computes for each row, inputs and outputs."""

    name: str
    parameters: str
    advance: str
    """The statement that moves its pointers to the next row."""
    rows: Mapping[Node, str]
    """Inputs that belong to a row -> expression."""
    keys: Mapping[Node, str]
    """Inputs that belong to a key -> pointer to the row's first."""
    outputs: Sequence[tuple[Operand, str]]
    """Numbers of each key, with the pointers that they are written to, inputs' among them."""
    spare: str = ""
    """The pointer of an output that is no input: it stores numbers of keys until the last pass."""
    kept: Sequence[Node] = ()
    """Numbers of a row that it writes to the parameter `kept`, for another function."""
    totals: Sequence[Node] = ()
    """Sums over all rows, which it adds to the parameter `totals`."""
    length: str = "visible[r]"
    """Number of keys in a row."""


def write_function(function: Function, dtype: torch.dtype, given: Mapping[Node, str]) -> str:
    """Return a template over `Keys` (rows.hpp); `given`: number of the head -> expression."""
    return _Writer(function, dtype, given).write()


def write_numbers(signature: str, outputs: Sequence[Operand], dtype: torch.dtype, given: Mapping[Node, str]) -> str:
    """Return a function that writes a register for each output; `given`: input -> expression."""
    scope, names = Scope(), Names(dtype)
    names.declare_given(given, scope)

    def compute(node: Node) -> None:
        if not scope.find(node):
            for operand in operands_of(node):
                compute(operand)
            names.declare(node, scope)

    for output in outputs:
        if isinstance(output, Node):
            compute(output)
    values = [names.of(output, scope) for output in outputs]
    stores = [f"store<T>(to + {n} * W<T>, {value});" for n, value in enumerate(values)]
    body = [f"    {line}" for line in (*scope.lines, *stores)]
    return "\n".join([f"{signature} {{", *body, "}", ""])


class _Writer:
    def __init__(self, function: Function, dtype: torch.dtype, given: Mapping[Node, str]) -> None:
        self.function = function
        self.names = Names(dtype)
        self.head = Scope()
        self.names.declare_given(given, self.head)
        self.totals = {node: self.names.new("total") for node in function.totals}
        self.stored: dict[Node, str] = {}
        """Numbers of keys that are stored from pass to pass -> pointer."""
        self.ready: set[Node] = set()
        """The stored numbers whose pass is already written."""
        self.reciprocals: dict[Node, Node] = {}

    def write(self) -> str:
        function = self.function
        row = Scope(self.head)
        self.names.declare_given(function.rows, row)
        block = _Block(self, row, frozenset())
        row_sources = [node.operands[0] for node in function.totals if not _key_source(node)]
        block.write([node for node in (*function.kept, *row_sources) if isinstance(node, Node)])
        for number, node in enumerate(function.kept):
            row.lines.append(f"Keys::keep(kept + {number} * Keys::KEPT, {block.row(node)});")
        for node, name in self.totals.items():
            if _key_source(node) is None:
                row.lines.append(f"{name} += {block.row(node.operands[0])};")
        pointers = dict.fromkeys(pointer for pointer in self.stored.values() if pointer != function.spare)
        lines = [
            *self.head.lines,
            *(f"N {name} = {{}};" for name in self.totals.values()),
            *(f"T *const {name} = ROW_OF_KEYS(end);" for name in pointers),
            "for (int r = 0; r < rows; r++) {",
            f"    const Keys at{{{function.length}}};",
            "    const int registers = at.registers();",
            *(f"    {line}" for line in row.lines),
            f"    {function.advance}",
            "}",
        ]
        for n, (node, name) in enumerate(self.totals.items()):
            # A sum over keys is spread over a register; a row's number fills it and counts once.
            total = name if _key_source(node) else f"Keys::once({name})"
            lines.append(f"store<T>(totals + {n} * W<T>, load<T>(totals + {n} * W<T>) + {total});")
        body = [f"    {line}" for line in lines]
        head = f"template <typename Keys> void {function.name}({function.parameters}) {{"
        return "\n".join([head, *body, "}", ""])


class _Block:
    """The passes over the keys of a row, or those of one step of a loop."""

    def __init__(self, writer: _Writer, scope: Scope, inner: frozenset[Node], parent: _Block | None = None) -> None:
        self._writer = writer
        self._scope = scope
        self._inner = inner
        """The nodes that depend on a loop's state; `parent` computes others before."""
        self._parent = parent
        self._passes: dict[Node, int] = {}

    def write(self, roots: Sequence[Node]) -> None:
        """Write all passes: the roots' sums and, outside of loops, outputs and totals."""
        function = self._writer.function
        outputs = function.outputs if self._parent is None else []
        totals = function.totals if self._parent is None else []
        totalled = [source for node in totals if (source := _key_source(node))]
        written = [output for output, _ in outputs if isinstance(output, Node)]
        nodes = self._nodes_here([*roots, *totalled, *written])
        sums = [node for node in nodes if node.what in _STARTS]
        for node in nodes:
            first = max((self._pass_of(source) for source in prerequisites(node)), default=0)
            self._passes[node] = first + int(node.what in _STARTS)  # a sum is known after its pass
        added = [*totalled, *(_source(node) for node in sums)]
        last = max((self._pass_of(node) for node in (*added, *written)), default=0)
        wanted: list[list[Node]] = [[] for _ in range(last + 1)]
        for node in added:
            wanted[self._pass_of(node)].append(node)
        wanted[last] += written
        if self._parent is None:
            self._choose_stored(wanted)
        for number in range(last + 1):
            stored = [] if self._parent else self._writer.stored
            self._write_pass(
                [node for node in sums if self._pass_of(_source(node)) == number],
                [node for node in totals if (key := _key_source(node)) and self._pass_of(key) == number],
                [node for node in stored if self._pass_of(node) == number],
                outputs if number == last else [],
            )

    def row(self, operand: Operand) -> str:
        """Return the expression of a number of a row or the head; compute it if it is unknown."""
        scope = self._scope
        if not isinstance(operand, Node):
            return self._writer.names.of(operand, scope)
        if known := scope.find(operand):
            return known
        if operand.level == Level.HEAD:
            for node in reachable([operand]):
                if self._writer.head.find(node) is None:
                    self._writer.names.declare(node, self._writer.head)
            return self._writer.head.known[operand]
        if self._parent and operand not in self._inner:
            return self._parent.row(operand)
        if operand.loop:
            self._write_loop(operand.loop)
            return scope.known[operand]
        assert operand.what not in _STARTS, "a pass computes it"
        for source in operands_of(operand):
            self.row(source)
        return self._writer.names.declare(operand, scope)

    # -- which pass --------------------------------------------------------------------------------

    def _nodes_here(self, roots: Sequence[Operand]) -> list[Node]:
        """Return the nodes that this block computes for the roots, operands first."""
        nodes: dict[Node, None] = {}
        given = self._writer.function.keys

        def visit(node: Node) -> None:
            if node in nodes or node in given or self._scope.find(node) or (self._parent and node not in self._inner):
                return
            for source in prerequisites(node):
                visit(source)
            nodes[node] = None

        for root in roots:
            if isinstance(root, Node):
                visit(root)
        return list(nodes)

    def _pass_of(self, node: Node) -> int:
        """Return the number of the first pass in which a node can be computed."""
        return self._passes.get(node, 0)

    def _choose_stored(self, wanted: list[list[Node]]) -> None:
        """Choose the key numbers that are stored: expensive ones that a later pass needs."""
        writer, stored = self._writer, self._writer.stored
        spares = [writer.function.spare] if writer.function.spare else []
        for number in range(len(wanted) - 1, 0, -1):
            seen: set[Node] = set()
            pending = [*wanted[number]]
            while pending:
                node = pending.pop()
                if node in seen or node.level != Level.KEY or node in writer.function.keys:
                    continue
                seen.add(node)
                before = self._pass_of(node)
                is_cheap = node.is_truth or self._price(node, set()) <= _EXPENSIVE
                if before == number or (node not in stored and is_cheap):
                    pending += operands_of(node)
                elif node not in stored:
                    stored[node] = spares.pop() if spares else writer.names.new("spare")
                    wanted[before].append(node)

    def _price(self, node: Node, seen: set[Node]) -> int:
        """Return a node's rough cost, given inputs and stored numbers; nodes in `seen` are free."""
        is_loaded = node in self._writer.function.keys or node in self._writer.stored
        if node in seen or node.level != Level.KEY or is_loaded:
            return 0
        seen.add(node)
        cost = 1 if _divides_by_row(node) else node.cost
        return cost + sum(self._price(source, seen) for source in operands_of(node))

    # -- the text ----------------------------------------------------------------------------------

    def _write_pass(
        self,
        sums: Sequence[Node],
        totals: Sequence[Node],
        stored: Sequence[Node],
        outputs: Sequence[tuple[Operand, str]],
    ) -> None:
        writer, scope = self._writer, self._scope
        if not (sums or totals or stored or outputs):
            return
        inner, names = Scope(scope), {node: writer.names.new("t") for node in sums}
        starts = {node: writer.names.spell(_STARTS[node.what]) for node in sums}
        body = [f"store<T>({writer.stored[node]} + n * W<T>, {self._key(node, inner)});" for node in stored]
        for node, name in names.items():
            value = f"at.seen({self._key(_source(node), inner)}, n, {starts[node]})"
            if node.what != "sum":  # a comparison names the number twice
                computed, value = value, writer.names.new("x")
                body.append(f"const N {value} = {computed};")
            body.append(_JOINS[node.what].format(name, value))
        for node in totals:
            source = _key_source(node)
            assert source
            body.append(f"{writer.totals[node]} += at.seen({self._key(source, inner)}, n, T(0));")
        for output, pointer in outputs:
            value = self._key(output, inner) if isinstance(output, Node) else writer.names.of(output, inner)
            body.append(f"store<T>({pointer} + n * W<T>, at.seen({value}, n, T(0)));")
        scope.lines += [f"N {name} = number({starts[node]});" for node, name in names.items()]
        lines = [f"    {line}" for line in (*inner.lines, *body)]
        scope.lines += ["for (int n = 0; n < registers; n++) {", *lines, "}"]
        for _, pointer in outputs:
            blank = f"store<T>({pointer} + n * W<T>, N{{}});"
            scope.lines.append(f"for (int n = registers; n < end; n++) {blank}")
        for node, name in names.items():
            scope.known[node] = writer.names.new("r")
            scope.lines.append(f"const N {scope.known[node]} = Keys::{node.what}({name});")
        writer.ready.update(stored)

    def _key(self, node: Node, inner: Scope) -> str:
        """Return a key number's expression, computed in `inner`; rows' come before the loop."""
        if node.level != Level.KEY:
            return self.row(node)
        if known := inner.find(node):
            return known
        writer = self._writer
        pointer = writer.function.keys.get(node)
        if pointer is None and node in writer.ready:
            pointer = writer.stored[node]
        if pointer:
            name = inner.known[node] = writer.names.new("k")
            inner.lines.append(f"const N {name} = load<T>({pointer} + n * W<T>);")
            return name
        if _divides_by_row(node):
            dividend, divisor = node.operands
            assert isinstance(divisor, Node)
            inverse = Node("{T}(1) / {0}", (divisor,), divisor.level)
            inverse = writer.reciprocals.setdefault(divisor, inverse)
            if divisor in self._inner:
                self._inner |= {inverse}
            reciprocal = self.row(inverse)
            left = self._key(dividend, inner) if isinstance(dividend, Node) else writer.names.of(dividend, inner)
            name = inner.known[node] = writer.names.new("k")
            inner.lines.append(f"const N {name} = {left} * {reciprocal};")
            return name
        for source in operands_of(node):
            self._key(source, inner)
        return writer.names.declare(node, inner)

    def _write_loop(self, loop: Loop) -> None:
        """Write a loop over the steps; its results are known after it."""
        writer, scope = self._writer, self._scope
        names = [writer.names.new("s") for _ in loop.starts]
        starts = [self.row(start) for start in loop.starts]
        scope.lines += [f"N {name} = {start};" for name, start in zip(names, starts, strict=True)]
        body = Scope(scope, dict(zip(loop.states, names, strict=True)))
        block = _Block(writer, body, frozenset(dependents(loop)), self)
        block.write([result for result in loop.results if isinstance(result, Node)])
        results = [block.row(result) for result in loop.results]
        ends = [*zip(results, names, strict=True)]
        same = " && ".join(f"same({result}, {name})" for result, name in ends)
        updates = [f"{name} = {result};" for result, name in ends]
        scope.lines.append(f"for (int step = 0; step < {loop.steps}; step++) {{")
        scope.lines += [f"    {line}" for line in (*body.lines, f"if ({same}) break;", *updates)]
        scope.lines.append("}")
        scope.known.update(zip(loop.nodes, names, strict=True))


def _divides_by_row(node: Node) -> bool:
    """Return whether a node divides by a row's number, whose reciprocal saves divisions."""
    divisor = node.operands[-1] if node.what == "{0} / {1}" else None
    return isinstance(divisor, Node) and divisor.level != Level.KEY


def _source(node: Node) -> Node:
    source = node.operands[0]
    assert isinstance(source, Node), "sums of constants are products"
    return source


def _key_source(total: Node) -> Node | None:
    """Return the key number that a total adds up; None if it adds up numbers of rows."""
    source = total.operands[0]
    return _source(source) if isinstance(source, Node) and source.what == "sum" else None
