"""The code of scorers: row functions that are recorded, read and written.

It has three functions. `weigh` turns logits into weights. `gradient` turns the gradient by weights
into that by logits. Both are templates over the arrangement of rows (Along or Beside,
native/rows.hpp). `finish` turns sums over all rows into the gradient by a head's learned numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.numerics.codegen.values import TYPES, spell
from workers.numerics.rows import loops
from workers.numerics.rows.algebra import KEYS, QUERIES, TensorFormula
from workers.numerics.rows.nodes import Graph, Level, Node, NotOfRows, Operand, operands_of, reachable
from workers.numerics.rows.reading import RecordingReader
from workers.numerics.rows.recording import Recorder
from workers.numerics.rows.writing import Function, write_function, write_numbers
from workers.numerics.simplifying import Slot
from workers.numerics.tensors import gradients

Weigh = Callable[[Tensor, Tensor, Mapping[str, Tensor], Mapping[str, Tensor | float]], Tensor]
"""Weights [h, q, k] from logits [h, q, k], the mask of visible keys [q, k], learned numbers [h] and
knobs []; h heads, q queries (rows), k keys."""


@dataclass(frozen=True)
class ScorerCode:
    """The text of a scorer's row functions, and the arguments that they need."""

    text: str
    given: int
    """The number of learned numbers and knobs that a head passes to its functions."""
    learned: int
    kept: int
    """The number of row numbers that `weigh` keeps for `gradient`."""
    totals: int
    """The number of sums over all rows that `gradient` adds to."""
    reads_logits: bool
    """True if `gradient` reads the logits; False if the weights are enough."""


_WEIGH = (
    "const T *given, const T *logits, T *weights, T *kept, std::ptrdiff_t stride, "
    "const int *visible, int rows, int all, int end"
)
_FINISH = "const T *given, const T *totals, T *to"
_GRADIENT = (
    "const T *given, const T *logits, const T *weights, const T *kept, T *gradient, T *totals, "
    "std::ptrdiff_t stride, const int *visible, int rows, int all, int end"
)


def write_scorer(
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    simpler: Mapping[str, Sequence[float]] | None = None,
) -> ScorerCode:
    """Return the code of a scorer that learns a number of each name by head; raises NotOfRows.

    `learned` and `knobs` are examples. `simpler`: knob -> values that get functions of their own,
    unless it learns: heads side by side may take either function, and their totals are finished by one.
    """
    places = {name: len(learned) + n for n, name in enumerate(knobs)}
    codes = {"": _write(weigh, learned, knobs, dtype, {})}
    conditions: list[tuple[str, str]] = []
    for name, values in (simpler if simpler and not learned else {}).items():
        for value in values:
            namespace = f"special_{len(conditions)}"
            codes[namespace] = _write(weigh, learned, knobs, dtype, {name: value})
            # Heads that lie side by side may have different knobs.
            knob = f"load<T>(given + {places[name]} * W<T>)"
            conditions.append((namespace, f"same({knob}, number({spell(value, dtype)}))"))
    if len(codes) > 1:
        codes["general"] = codes.pop("")
    functions = [f"namespace {name} {{\n{code.text}}}" if name else code.text for name, code in codes.items()]
    if conditions:
        functions += [_write_dispatch(*function, conditions) for function in _DISPATCHES]
    variants = codes.values()
    reads_logits = any(code.reads_logits for code in variants)
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
    kept, totals = (max(getattr(code, field) for code in variants) for field in ("kept", "totals"))
    return ScorerCode(text, len(learned) + len(knobs), len(learned), kept, totals, reads_logits)


_DISPATCHES = (
    ("template <typename Keys> void weigh", _WEIGH, "weigh<Keys>"),
    ("template <typename Keys> void gradient", _GRADIENT, "gradient<Keys>"),
    ("void finish_numbers", _FINISH, "finish_numbers"),
)
"""The functions of a scorer: C++ declaration, parameters and call."""


def _write_dispatch(declared: str, parameters: str, call: str, conditions: Sequence[tuple[str, str]]) -> str:
    """Return a function that calls the first namespace whose condition holds, else `general`."""
    names = ", ".join(parameter.split("*")[-1].split()[-1] for parameter in parameters.split(", "))
    called = f"{call}({names});"
    lines = [f"    if ({condition}) return {space}::{called}" for space, condition in conditions]
    return "\n".join([f"{declared}({parameters}) {{", *lines, f"    general::{called}", "}", ""])


def _write(
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    plain: Mapping[str, float],
) -> ScorerCode:
    """Return the functions of a scorer; `plain` has the knobs that are written as numbers."""
    graph = Graph()
    inputs = _record(graph, weigh, learned, knobs, dtype, plain)
    weights, forward = inputs.weights, set(reachable([inputs.weights]))
    # `gradient` starts from the weights, their consequences, and the numbers that `weigh` keeps.
    known = _known_from(graph, weights)
    # The numerator of weights that are a quotient is computed from them and the divisor.
    divisors = [formula.operands[1] for node, formula in known.items() if formula is not node]
    kept = _find_kept([*inputs.gradients, *divisors], forward, set(known))
    roots = _rebuild(graph, inputs.gradients, known | {node: node for node in kept})
    stop = {*kept, weights} if isinstance(weights, Node) else {*kept}
    nodes = _reachable_before(roots, stop)
    totals = [node for node in nodes if node.what == "total"]
    head = {node: f"load<T>(given + {n} * W<T>)" for n, node in enumerate(inputs.given) if node}
    rows = {inputs.visible: "number(T(visible[r]))", inputs.all: "number(T(all))"}
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
    return ScorerCode(text, len(inputs.given), len(learned), len(kept), len(totals), reads_logits)


@dataclass(frozen=True)
class _ScorerFormulas:
    """The inputs of a recorded scorer, and the formulas of its results."""

    given: list[Node | None]
    """The numbers that the head learns, then the knobs; None for a knob written as a number."""
    logits: Node
    gradient: Node
    visible: Node
    """The number of a row's visible keys."""
    all: Node
    """The number of all keys of a row."""
    weights: Operand
    gradients: list[Operand]
    """The gradient by logits, then by each learned number."""


def _record(
    graph: Graph,
    weigh: Weigh,
    learned: Mapping[str, float],
    knobs: Mapping[str, float],
    dtype: torch.dtype,
    plain: Mapping[str, float],
) -> _ScorerFormulas:
    """Record a scorer and its gradients on an example, and read the recording; raises NotOfRows."""
    generator = torch.Generator().manual_seed(1)
    shape = 1, QUERIES, KEYS
    logits, gradient = (torch.randn(shape, dtype=dtype, generator=generator) for _ in range(2))
    visible = torch.ones(QUERIES, KEYS, dtype=torch.bool).tril(KEYS - QUERIES)
    numbers = {name: torch.full((1,), value, dtype=dtype) for name, value in learned.items()}
    passed = {name: value for name, value in knobs.items() if name not in plain}
    given_knobs = {name: torch.tensor(value, dtype=torch.float64) for name, value in passed.items()}
    wanted = [logits, *numbers.values()]
    for leaf in wanted:
        leaf.requires_grad_()
    recording = Recorder([logits, gradient, visible, *numbers.values(), *given_knobs.values()])
    with recording, loops.recording(), torch.enable_grad():
        weights = weigh(logits, visible, numbers, {**given_knobs, **plain})
        if weights.shape != logits.shape:
            raise NotOfRows("its weights have another shape than its logits")
        by_leaf: list[Tensor | None] = [None] * len(wanted)
        if weights.requires_grad:
            by_leaf = gradients(weights, wanted, gradient, create_graph=True)
    logit, incoming = graph.input("logits", Level.KEY), graph.input("gradient", Level.KEY)
    leaves: dict[Slot, TensorFormula] = {}

    def introduce(tensor: Tensor, at_visible: Operand, at_hidden: Operand | None) -> None:
        slot = recording.leaves[id(tensor)]
        leaves[slot] = TensorFormula(tuple(tensor.shape), tensor.dtype, at_visible, at_hidden)

    introduce(logits, logit, None)
    introduce(gradient, incoming, None)
    introduce(visible, True, False)
    given: list[Node | None] = []
    for name, tensor in (*numbers.items(), *((name, given_knobs.get(name)) for name in knobs)):
        if tensor is None:
            given.append(None)
        else:
            node = graph.input(f"given {len(given)} {name}", Level.HEAD)
            given.append(node)
            introduce(tensor, node, node)
    reader = RecordingReader(graph, leaves, dtype)
    reader.read(recording.operations)
    result = reader.formula_of(recording.slot(weights))
    if result.hidden is None or isinstance(result.hidden, Node) or result.hidden != 0:
        raise NotOfRows("its weights of invisible keys are not 0")
    slots = [None if tensor is None else recording.slot(tensor) for tensor in by_leaf]
    formulas = [0.0 if slot is None else reader.formula_of(slot).visible for slot in slots]
    for formula, name in zip(formulas[1:], numbers, strict=True):
        if isinstance(formula, Node) and formula.level in (Level.ROW, Level.KEY):
            raise NotOfRows(f"the gradient by {name} is not a sum over rows")
    keys = reader.algebra.visible_keys, reader.algebra.all_keys
    return _ScorerFormulas(given, logit, incoming, *keys, result.visible, formulas)


def _known_from(graph: Graph, weights: Operand) -> dict[Node, Node]:
    """Return formulas from the weights: their own and, of a quotient, the numerator's."""
    if not isinstance(weights, Node):
        return {}
    known = {weights: weights}
    if weights.what == "{0} / {1}":
        numerator, divisor = weights.operands
        is_of_key = isinstance(divisor, Node) and divisor.level == Level.KEY
        if isinstance(numerator, Node) and not is_of_key:
            known[numerator] = graph.formula("{0} * {1}", (weights, divisor))
    return known


def _rebuild(graph: Graph, roots: Sequence[Operand], known: Mapping[Node, Node]) -> list[Operand]:
    """Return the roots, computed from the formulas of known nodes."""
    rebuilt: dict[Node, Node] = dict(known)
    for node in _reachable_before(roots, set(known)):
        if node not in rebuilt:
            operands = tuple(rebuilt[operand] if isinstance(operand, Node) else operand for operand in node.operands)
            is_same = operands == node.operands or node.loop
            rebuilt[node] = node if is_same else graph.again(node, operands)
    return [rebuilt[root] if isinstance(root, Node) else root for root in roots]


def _reachable_before(roots: Sequence[Operand], stop: set[Node]) -> list[Node]:
    """Return the nodes that the roots need, operands first, without the operands of `stop`."""
    nodes: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in nodes:
            return
        if node not in stop:
            for operand in operands_of(node):
                visit(operand)
        nodes[node] = None

    for root in roots:
        if isinstance(root, Node):
            visit(root)
    return list(nodes)


def _find_kept(roots: Sequence[Operand], forward: set[Node], known: set[Node]) -> list[Node]:
    """Return the row numbers that `weigh` computes from keys and that `gradient` needs."""
    kept: dict[Node, None] = {}
    pending, seen = [root for root in roots if isinstance(root, Node)], set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        is_row_number = node in forward and node.level == Level.ROW and not node.is_truth
        if is_row_number and any(source.level == Level.KEY for source in reachable([node])):
            kept[node] = None
        elif node not in known:
            pending += operands_of(node)
    return list(kept)
