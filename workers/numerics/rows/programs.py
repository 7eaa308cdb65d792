"""Row functions of scorers: recorded, read and written.

A program has functions for both arrangements of rows: `weigh`, from logits to weights, and `gradient`, from the
gradient by weights to that by logits; and `finish`, from sums over all rows to the gradient by what a head learns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.numerics.fusion.values import TYPES, spell
from workers.numerics.rows import loops
from workers.numerics.rows.nodes import Graph, Level, Node, NotOfRows, Operand, operands_of, reachable
from workers.numerics.rows.reading import KEYS, QUERIES, Reader, Spot
from workers.numerics.rows.recording import Recording
from workers.numerics.rows.writing import Function, write_function, write_numbers
from workers.numerics.simplifying import Slot
from workers.numerics.tensors import gradients

Weigh = Callable[[Tensor, Tensor, Mapping[str, Tensor], Mapping[str, Tensor | float]], Tensor]
"""Weights [h, q, k] from logits [h, q, k], what is visible [q, k], what is learned [h] and knobs []."""


@dataclass(frozen=True)
class Program:
    """The text of a scorer's row functions, and what its callers must provide."""

    text: str
    given: int
    """Numbers of a head: what it learns, then the knobs."""
    learned: int
    kept: int
    """Numbers of a row that `weigh` keeps for `gradient`."""
    totals: int
    """Sums over all rows that `gradient` adds to."""
    reads_logits: bool
    """Whether `gradient` needs the logits; else it makes do with the weights."""


_WEIGH = (
    "const T *given, const T *logits, T *weights, T *kept, std::ptrdiff_t stride, const int *visible, int rows, "
    "int all, int end"
)
_FINISH = "const T *given, const T *totals, T *to"
_GRADIENT = (
    "const T *given, const T *logits, const T *weights, const T *kept, T *gradient, T *totals, std::ptrdiff_t stride, "
    "const int *visible, int rows, int all, int end"
)


def write_scorer(
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    simpler: Mapping[str, Sequence[float]] | None = None,
) -> Program:
    """Return the program of a scorer that learns one number a head of each name; raises NotOfRows.

    The values of what is learned and of knobs are an example's: none is written into the program. `simpler`: values of
    knobs for which the program has functions of their own, recorded with the plain number in the knob's place.
    """
    places = {name: len(learned) + n for n, name in enumerate(knobs)}
    programs = {"": _write(weigh, learned, knobs, dtype, {})}
    conditions: list[tuple[str, str]] = []
    for name, values in (simpler or {}).items():
        for value in values:
            own = f"special_{len(conditions)}"
            programs[own] = _write(weigh, learned, knobs, dtype, {name: value})
            conditions.append((own, f"given[{places[name]} * W<T>] == {spell(value, dtype)}"))
    if len(programs) > 1:
        programs["general"] = programs.pop("")
    functions = [f"namespace {name} {{\n{one.text}}}" if name else one.text for name, one in programs.items()]
    if conditions:
        functions += [_choose(*one, conditions) for one in _DISPATCHED]
    every = programs.values()
    reads_logits = any(one.reads_logits for one in every)
    text = "\n".join(
        [
            f"typedef {TYPES[dtype]} T;",
            f"constexpr bool reads_logits = {str(reads_logits).lower()};",
            '#include "row_functions.hpp"',
            "namespace rows {",
            *functions,
            "}",
            "SCORER",
            "",
        ]
    )
    kept, totals = (max(getattr(one, field) for one in every) for field in ("kept", "totals"))
    return Program(text, len(learned) + len(knobs), len(learned), kept, totals, reads_logits)


_DISPATCHED = (
    ("template <typename Keys> void weigh", _WEIGH, "weigh<Keys>"),
    ("template <typename Keys> void gradient", _GRADIENT, "gradient<Keys>"),
    ("void finish_numbers", _FINISH, "finish_numbers"),
)
"""Functions: what they are declared as, their parameters, and how they are called."""


def _choose(declared: str, parameters: str, call: str, conditions: Sequence[tuple[str, str]]) -> str:
    """Return a function that calls the one for the knobs of the head."""
    names = ", ".join(one.split("*")[-1].split()[-1] for one in parameters.split(", "))
    lines = [f"    if ({condition}) return {space}::{call}({names});" for space, condition in conditions]
    return "\n".join([f"{declared}({parameters}) {{", *lines, f"    general::{call}({names});", "}", ""])


def _write(
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    plain: Mapping[str, float],
) -> Program:
    """Return the functions of a scorer with plain numbers in place of some knobs."""
    graph = Graph()
    inputs = _record(graph, weigh, learned, knobs, dtype, plain)
    weights, forward = inputs.weights, set(reachable([inputs.weights]))
    known = _given_back(graph, weights)
    kept = _find_kept([*inputs.gradients, *_divisors(known)], forward, set(known))
    roots = _rebuilt(graph, inputs.gradients, known | {node: node for node in kept})
    stop = {*kept, weights} if isinstance(weights, Node) else {*kept}
    nodes = _reachable_before(roots, stop)
    totals = [node for node in nodes if node.what == "total"]
    head = {node: f"load<T>(given + {n} * W<T>)" for n, node in enumerate(inputs.given) if node}
    rows = {inputs.count: "number(T(visible[r]))", inputs.all: "number(T(all))"}
    forward_function = Function(
        name="weigh",
        parameters=_WEIGH,
        advance=f"logits += stride, weights += stride, kept += {len(kept)} * Keys::KEPT;",
        rows=rows,
        keys={inputs.logits: "logits"},
        outputs=[(weights, "weights")],
        spare="weights",
        kept=kept,
    )
    keys = {inputs.logits: "logits", inputs.gradient: "gradient"}
    backward_function = Function(
        name="gradient",
        parameters=_GRADIENT,
        advance="logits += reads_logits ? stride : 0, weights += stride, gradient += stride, "
        f"kept += {len(kept)} * Keys::KEPT;",
        rows=rows | {node: f"Keys::kept(kept + {n} * Keys::KEPT)" for n, node in enumerate(kept)},
        keys=keys | ({weights: "weights"} if isinstance(weights, Node) else {}),
        outputs=[(roots[0], "gradient")],
        totals=totals,
    )
    reads_logits = inputs.logits in nodes
    sums = {node: f"load<T>(totals + {n} * W<T>)" for n, node in enumerate(totals)}
    text = "\n".join(
        [
            write_function(forward_function, dtype, head),
            write_function(backward_function, dtype, head),
            write_numbers(f"void finish_numbers({_FINISH})", roots[1:], dtype, head | sums),
        ]
    )
    return Program(text, len(inputs.given), len(learned), len(kept), len(totals), reads_logits)


@dataclass(frozen=True)
class _Read:
    """A scorer that was recorded and read."""

    given: list[Node | None]
    """None: a plain number."""
    logits: Node
    gradient: Node
    count: Node
    all: Node
    weights: Operand
    gradients: list[Operand]
    """By logits, then by each number that is learned."""


def _record(
    graph: Graph,
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    plain: Mapping[str, float],
) -> _Read:
    generator = torch.Generator().manual_seed(1)
    logits, gradient = (torch.randn(1, QUERIES, KEYS, dtype=dtype, generator=generator) for _ in range(2))
    visible = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    numbers = {name: torch.full((1,), value, dtype=dtype) for name, value in learned.items()}
    given_knobs = {name: torch.tensor(value, dtype=torch.float64) for name, value in knobs.items() if name not in plain}
    wanted = [logits, *numbers.values()]
    for leaf in wanted:
        leaf.requires_grad_()
    recording = Recording([logits, gradient, visible, *numbers.values(), *given_knobs.values()])
    with recording, loops.recording(), torch.enable_grad():
        weights = weigh(logits, visible, numbers, {**given_knobs, **plain})
        if weights.shape != logits.shape:
            raise NotOfRows("its weights have another shape than its logits")
        found: list[Tensor | None] = [None] * len(wanted)
        if weights.requires_grad:
            found = gradients(weights, wanted, gradient, create_graph=True)
    nodes = {"logits": graph.input("logits", Level.KEY), "gradient": graph.input("gradient", Level.KEY)}
    spots: dict[Slot, Spot] = {}

    def know(tensor: Tensor, shown: Operand, hidden: Operand | None) -> None:
        slot = recording.leaves[id(tensor)]
        spots[slot] = Spot(tuple(tensor.shape), tensor.dtype, shown, hidden)

    know(logits, nodes["logits"], None)
    know(gradient, nodes["gradient"], None)
    know(visible, True, False)
    given: list[Node | None] = []
    for name, tensor in (*numbers.items(), *((name, given_knobs.get(name)) for name in knobs)):
        given.append(None if tensor is None else graph.input(f"given {len(given)} {name}", Level.HEAD))
        if tensor is not None and given[-1]:
            know(tensor, given[-1], given[-1])
    reader = Reader(graph, spots, dtype)
    reader.read(recording.operations)
    result = reader.spot(recording.slot(weights))
    if result.hidden is None or isinstance(result.hidden, Node) or result.hidden != 0:
        raise NotOfRows("its weights of invisible keys are not 0")
    by = [0.0 if one is None else reader.spot(recording.slot(one)).shown for one in found]
    for one, (name, _) in zip(by[1:], numbers.items(), strict=True):
        if isinstance(one, Node) and one.level in (Level.ROW, Level.KEY):
            raise NotOfRows(f"the gradient by {name} is not a sum over rows")
    return _Read(given, nodes["logits"], nodes["gradient"], reader.count, reader.keys, result.shown, by)


def _given_back(graph: Graph, weights: Operand) -> dict[Node, Node]:
    """Return the nodes that follow from the weights: themselves and the numerator of a quotient by a row's number."""
    if not isinstance(weights, Node):
        return {}
    known = {weights: weights}
    if weights.what == "{0} / {1}":
        numerator, divisor = weights.operands
        if isinstance(numerator, Node) and not (isinstance(divisor, Node) and divisor.level == Level.KEY):
            known[numerator] = graph.formula("{0} * {1}", (weights, divisor))
    return known


def _divisors(known: Mapping[Node, Node]) -> list[Operand]:
    """Numbers of a row by which the weights give back their numerator."""
    return [formula.operands[1] for node, formula in known.items() if formula is not node]


def _rebuilt(graph: Graph, roots: Sequence[Operand], known: Mapping[Node, Node]) -> list[Operand]:
    """Return the roots with what is known in place of what it takes to compute it."""
    found: dict[Node, Node] = dict(known)
    for node in _reachable_before(roots, set(known)):
        if node not in found:
            operands = tuple(found[one] if isinstance(one, Node) else one for one in node.operands)
            found[node] = node if operands == node.operands or node.loop else graph.again(node, operands)
    return [found[one] if isinstance(one, Node) else one for one in roots]


def _reachable_before(roots: Sequence[Operand], stop: set[Node]) -> list[Node]:
    """Return all nodes that the roots need, each after its operands; those of `stop` without their operands."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in found:
            return
        if node not in stop:
            for one in operands_of(node):
                visit(one)
        found[node] = None

    for root in roots:
        if isinstance(root, Node):
            visit(root)
    return list(found)


def _find_kept(roots: Sequence[Operand], forward: set[Node], known: set[Node]) -> list[Node]:
    """Numbers of a row that the forward function computes from its keys and the gradient needs."""
    found: dict[Node, None] = {}
    pending, seen = [one for one in roots if isinstance(one, Node)], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in forward and node.level == Level.ROW and not node.is_truth and _needs_keys(node):
            found[node] = None
        elif node not in known:
            pending += operands_of(node)
    return list(found)


def _needs_keys(node: Node) -> bool:
    return any(one.level == Level.KEY for one in reachable([node]))
