"""Formulas of rows as C++ over vector registers (workers/numerics/native/rows.hpp).

A function goes through the rows that it is given. A row is gone through in passes: a pass computes sums over the keys,
or stores what the function gives; what needs a sum is computed in a later pass. Numbers of keys that are dear and
needed by several passes are kept in a row of their own, others are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from workers.numerics.fusion.values import spell
from workers.numerics.rows.nodes import Level, Loop, Node, Operand, operands_of, reachable

_DEAR = 6
"""What costs more is kept from pass to pass."""
_STARTS = {"sum": 0.0, "largest": -math.inf, "smallest": math.inf}
_JOINS = {"sum": "{0} += {1};", "largest": "{0} = {1} > {0} ? {1} : {0};", "smallest": "{0} = {1} < {0} ? {1} : {0};"}


@dataclass(frozen=True)
class Function:
    """What a generated function computes of each row, and where it finds what it is given."""

    name: str
    parameters: str
    """Of its C++ signature."""
    advance: str
    """The statement by which its pointers go on to the next row."""
    rows: Mapping[Node, str]
    """Numbers of a row that are given -> expression."""
    keys: Mapping[Node, str]
    """Numbers of keys that are given -> pointer to the first of the row."""
    outputs: Sequence[tuple[Operand, str]]
    """What it computes of each key -> pointer to where that goes. An output may be written over what is given."""
    spare: str = ""
    """An output's pointer that nothing is read from, where numbers of keys may be kept until the last pass."""
    kept: Sequence[Node] = ()
    """Numbers of a row that are kept for another function, at `kept`."""
    totals: Sequence[Node] = ()
    """Sums over all rows, at `totals`."""
    length: str = "visible[r]"
    """Number of keys in a row."""


class _Scope:
    """A block of statements; what an outer one has computed is known in it."""

    def __init__(self, parent: _Scope | None = None, known: Mapping[Node, str] | None = None) -> None:
        self.lines: list[str] = []
        self.known: dict[Node, str] = dict(known or {})
        self._parent = parent

    def find(self, node: Node) -> str | None:
        """Return the expression that stands for a node."""
        return self.known.get(node) or (self._parent.find(node) if self._parent else None)


def write_function(function: Function, dtype: torch.dtype, given: Mapping[Node, str]) -> str:
    """Return a function template over `Keys`, the arrangement of rows; `given`: numbers of the head -> expression."""
    return _Writer(function, dtype, given).write()


def write_numbers(signature: str, outputs: Sequence[Operand], dtype: torch.dtype, given: Mapping[Node, str]) -> str:
    """Return a function that computes registers at `to`, one for each output, from what is given."""
    scope, names = _Scope(), _Names(dtype)
    names.give(given, scope)

    def compute(node: Node) -> None:
        if not scope.find(node):
            for one in operands_of(node):
                compute(one)
            names.say(node, scope)

    for output in outputs:
        if isinstance(output, Node):
            compute(output)
    lines = [*scope.lines, *(f"store<T>(to + {n} * W<T>, {names.of(one, scope)});" for n, one in enumerate(outputs))]
    return "\n".join([f"{signature} {{", *(f"    {line}" for line in lines), "}", ""])


class _Names:
    """Names of variables, and how formulas are spelt."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._next = 0

    def new(self, letter: str) -> str:
        self._next += 1
        return f"{letter}{self._next}"

    def spell(self, number: float) -> str:
        return spell(number, self._dtype)

    def of(self, operand: Operand, scope: _Scope) -> str:
        if not isinstance(operand, Node):
            return f"number({self.spell(float(operand))})"
        found = scope.find(operand)
        assert found, "operands are computed before what needs them"
        return found

    def give(self, given: Mapping[Node, str], scope: _Scope) -> None:
        """Read what a function is given."""
        for node, expression in given.items():
            scope.known[node] = self.new("g")
            scope.lines.append(f"const N {scope.known[node]} = {expression};")

    def say(self, node: Node, scope: _Scope) -> str:
        """Compute a formula whose operands are known in this scope."""
        operands = [self.of(one, scope) for one in node.operands]
        name = scope.known[node] = self.new("hrkt"[node.level])
        kind = "auto" if node.is_truth else "N"
        scope.lines.append(f"const {kind} {name} = {node.what.format(*operands, T='number')};")
        return name


class _Writer:
    def __init__(self, function: Function, dtype: torch.dtype, given: Mapping[Node, str]) -> None:
        self.function = function
        self.names = _Names(dtype)
        self.head = _Scope()
        self.names.give(given, self.head)
        self.totals = {node: self.names.new("total") for node in function.totals}
        self.stored: dict[Node, str] = {}
        """Numbers of keys that are kept from pass to pass -> pointer."""
        self.ready: set[Node] = set()
        """Those that are stored by now."""
        self.turned: dict[Node, Node] = {}
        """Divisors -> their reciprocals."""

    def write(self) -> str:
        function = self.function
        row = _Scope(self.head)
        self.names.give(function.rows, row)
        block = _Block(self, row, frozenset())
        apart = [node.operands[0] for node in function.totals if not _summed(node)]
        block.write([*function.kept, *(one for one in apart if isinstance(one, Node))])
        for number, node in enumerate(function.kept):
            row.lines.append(f"Keys::keep(kept + {number} * Keys::KEPT, {block.row(node)});")
        for node, name in self.totals.items():
            if _summed(node) is None:
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
            *(
                f"store<T>(totals + {n} * W<T>, load<T>(totals + {n} * W<T>) + {self._total(node, name)});"
                for n, (node, name) in enumerate(self.totals.items())
            ),
        ]
        body = [f"    {line}" for line in lines]
        return "\n".join([f"template <typename Keys> void {function.name}({function.parameters}) {{", *body, "}", ""])

    def _total(self, node: Node, name: str) -> str:
        # Of a number of each row every place along a row has the same.
        return name if _summed(node) else f"Keys::once({name})"


class _Block:
    """The passes over the keys of a row, or those of one step of a loop."""

    def __init__(self, writer: _Writer, scope: _Scope, inner: frozenset[Node], parent: _Block | None = None) -> None:
        self._writer = writer
        self._scope = scope
        self._inner = inner
        """Of a loop: what depends on its state. The rest is computed before it."""
        self._parent = parent
        self._passes: dict[Node, int] = {}

    def write(self, roots: Sequence[Node]) -> None:
        """All passes: sums that the roots need, and of the block of a whole row its outputs and totals."""
        function = self._writer.function
        outputs = function.outputs if self._parent is None else []
        totals = function.totals if self._parent is None else []
        summed = [source for node in totals if (source := _summed(node))]
        every = [*roots, *summed, *(one for one, _ in outputs if isinstance(one, Node))]
        sums = [node for node in self._own(every) if node.what in _STARTS]
        for node in self._own(every):
            self._number(node)
        ends = [self._pass_of(one) for one in (*summed, *(_source(node) for node in sums))]
        ends += [self._pass_of(one) for one, _ in outputs if isinstance(one, Node)]
        last = max(ends, default=0)
        wanted: list[list[Node]] = [[] for _ in range(last + 1)]
        for one in (*summed, *(_source(node) for node in sums)):
            wanted[self._pass_of(one)].append(one)
        wanted[last] += [one for one, _ in outputs if isinstance(one, Node)]
        if self._parent is None:
            self._choose_stored(wanted)
        for number in range(last + 1):
            self._write_pass(
                [node for node in sums if self._pass_of(_source(node)) == number],
                [node for node in totals if (one := _summed(node)) and self._pass_of(one) == number],
                [node for node in self._writer.stored if self._parent is None and self._pass_of(node) == number],
                outputs if number == last else [],
            )

    def row(self, operand: Operand) -> str:
        """Return the expression of a number of a row or of the head, computed now if it was not."""
        scope = self._scope
        if not isinstance(operand, Node):
            return self._writer.names.of(operand, scope)
        if found := scope.find(operand):
            return found
        if operand.level == Level.HEAD:
            for node in reachable([operand]):
                if self._writer.head.find(node) is None:
                    self._writer.names.say(node, self._writer.head)
            return self._writer.head.known[operand]
        if self._parent and operand not in self._inner:
            return self._parent.row(operand)
        if operand.loop:
            self._write_loop(operand.loop)
            found = scope.find(operand)
            assert found
            return found
        assert operand.what not in _STARTS, "a pass computes it"
        for one in operands_of(operand):
            self.row(one)
        return self._writer.names.say(operand, scope)

    # -- which pass --------------------------------------------------------------------------------------------------

    def _own(self, roots: Sequence[Operand]) -> list[Node]:
        """Return the nodes that this block computes for the roots, operands first; not those of a loop's steps."""
        found: dict[Node, None] = {}
        given = self._writer.function.keys

        def visit(node: Node) -> None:
            if node in found or node in given or self._scope.find(node) or (self._parent and node not in self._inner):
                return
            for one in _read_by(node):
                visit(one)
            found[node] = None

        for root in roots:
            if isinstance(root, Node):
                visit(root)
        return list(found)

    def _number(self, node: Node) -> None:
        before = max((self._pass_of(one) for one in _read_by(node)), default=0)
        self._passes[node] = before + int(node.what in _STARTS)

    def _pass_of(self, node: Node) -> int:
        """Return the first pass in which it can be computed."""
        return self._passes.get(node, 0)

    def _choose_stored(self, wanted: list[list[Node]]) -> None:
        """Find numbers of keys that cost too much to be computed again in a later pass."""
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
                is_cheap = node.is_truth or self._price(node, set()) <= _DEAR
                if before == number or (node not in stored and is_cheap):
                    pending += operands_of(node)
                elif node not in stored:
                    stored[node] = spares.pop() if spares else writer.names.new("spare")
                    wanted[before].append(node)

    def _price(self, node: Node, seen: set[Node]) -> int:
        """About what it takes to compute it from numbers that are given or stored."""
        is_there = node in self._writer.function.keys or node in self._writer.stored
        if node in seen or node.level != Level.KEY or is_there:
            return 0
        seen.add(node)
        return (1 if _is_share(node) else node.cost) + sum(self._price(one, seen) for one in operands_of(node))

    # -- the text ----------------------------------------------------------------------------------------------------

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
        inner, names = _Scope(scope), {node: writer.names.new("t") for node in sums}
        body = [f"store<T>({writer.stored[node]} + n * W<T>, {self._key(node, inner)});" for node in stored]
        for node, name in names.items():
            value = f"at.seen({self._key(_source(node), inner)}, n, {writer.names.spell(_STARTS[node.what])})"
            if node.what != "sum":
                given, value = value, writer.names.new("x")
                body.append(f"const N {value} = {given};")
            body.append(_JOINS[node.what].format(name, value))
        for node in totals:
            source = _summed(node)
            assert source
            body.append(f"{writer.totals[node]} += at.seen({self._key(source, inner)}, n, T(0));")
        for one, pointer in outputs:
            value = self._key(one, inner) if isinstance(one, Node) else writer.names.of(one, inner)
            body.append(f"store<T>({pointer} + n * W<T>, at.seen({value}, n, T(0)));")
        scope.lines += [f"N {name} = number({writer.names.spell(_STARTS[n.what])});" for n, name in names.items()]
        scope.lines += ["for (int n = 0; n < registers; n++) {", *(f"    {one}" for one in (*inner.lines, *body)), "}"]
        for _, pointer in outputs:
            scope.lines.append(f"for (int n = registers; n < end; n++) store<T>({pointer} + n * W<T>, N{{}});")
        for node, name in names.items():
            scope.known[node] = writer.names.new("r")
            scope.lines.append(f"const N {scope.known[node]} = Keys::{node.what}({name});")
        writer.ready.update(stored)

    def _key(self, node: Node, inner: _Scope) -> str:
        """Return the expression of a number of a key, in a loop over keys; what belongs to the row is computed before
        it.
        """
        if node.level != Level.KEY:
            return self.row(node)
        if found := inner.find(node):
            return found
        writer = self._writer
        pointer = writer.function.keys.get(node) or (writer.stored[node] if node in writer.ready else None)
        if pointer:
            name = inner.known[node] = writer.names.new("k")
            inner.lines.append(f"const N {name} = load<T>({pointer} + n * W<T>);")
            return name
        if _is_share(node):
            one, divisor = node.operands
            assert isinstance(divisor, Node)
            share = self.row(self._turned(divisor))
            left = self._key(one, inner) if isinstance(one, Node) else writer.names.of(one, inner)
            name = inner.known[node] = writer.names.new("k")
            inner.lines.append(f"const N {name} = {left} * {share};")
            return name
        for one in operands_of(node):
            self._key(one, inner)
        return writer.names.say(node, inner)

    def _turned(self, divisor: Node) -> Node:
        known = self._writer.turned.setdefault(divisor, Node("{T}(1) / {0}", (divisor,), divisor.level))
        if divisor in self._inner and known not in self._inner:
            self._inner |= {known}
        return known

    def _write_loop(self, loop: Loop) -> None:
        """Write the steps of a loop, after which its results are known."""
        writer, scope = self._writer, self._scope
        names = [writer.names.new("s") for _ in loop.starts]
        starts = [self.row(one) for one in loop.starts]
        scope.lines += [f"N {name} = {start};" for name, start in zip(names, starts, strict=True)]
        body = _Scope(scope, dict(zip(loop.states, names, strict=True)))
        block = _Block(writer, body, frozenset(_dependent(loop)), self)
        block.write([one for one in loop.results if isinstance(one, Node)])
        results = [block.row(one) for one in loop.results]
        same = " && ".join(f"same({one}, {name})" for one, name in zip(results, names, strict=True))
        moved = [f"{name} = {one};" for one, name in zip(results, names, strict=True)]
        scope.lines.append(f"for (int step = 0; step < {loop.steps}; step++) {{")
        scope.lines += [f"    {line}" for line in (*body.lines, f"if ({same}) break;", *moved)]
        scope.lines.append("}")
        for number, name in enumerate(names):
            scope.known[loop.nodes[number]] = name


def _is_share(node: Node) -> bool:
    """Return whether it is a quotient by a number of the row, which is turned once: one division instead of one a
    key.
    """
    divisor = node.operands[-1] if node.what == "{0} / {1}" else None
    return isinstance(divisor, Node) and divisor.level != Level.KEY


def _source(node: Node) -> Node:
    source = node.operands[0]
    assert isinstance(source, Node), "sums of constants are products"
    return source


def _summed(total: Node) -> Node | None:
    """Return the number of keys whose sums over a row a total adds up, if it adds up sums."""
    source = total.operands[0]
    return _source(source) if isinstance(source, Node) and source.what == "sum" else None


def _dependent(loop: Loop) -> set[Node]:
    """Return the nodes that a loop's body computes from its state."""
    found = set(loop.states)
    for node in reachable(loop.results):
        if any(one in found for one in operands_of(node)):
            found.add(node)
    return found


def _read_by(node: Node) -> list[Node]:
    """Return what must be computed before a node: for a loop's result, what its body reads from outside."""
    if not node.loop:
        return [*operands_of(node)]
    inner = _dependent(node.loop)
    outside = [one for one in reachable(node.loop.results) if one not in inner]
    return [*(one for one in node.loop.starts if isinstance(one, Node)), *outside]
