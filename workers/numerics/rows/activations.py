"""Row functions of activations: recorded, read and written.

An activation maps each number of a row or, with several parts (two if gated), those at the same
place of all parts. In its code `activate` computes values, and slopes over its inputs; `learn` sums
what the gradient by learned numbers needs; `finish` turns the sums into that gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.numerics.codegen.values import TYPES
from workers.numerics.rows import loops
from workers.numerics.rows.algebra import KEYS, QUERIES, TensorFormula, side_by_side
from workers.numerics.rows.nodes import Graph, Level, Node, NotOfRows, Operand, reachable
from workers.numerics.rows.reading import RecordingReader
from workers.numerics.rows.recording import Recorder
from workers.numerics.rows.writing import Function, write_function, write_numbers
from workers.numerics.simplifying import Slot
from workers.numerics.tensors import gradients

Apply = Callable[[Tensor, Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
"""Values [q, f] from numbers [q, parts * f], learned numbers and knobs []."""


@dataclass(frozen=True)
class ActivationCode:
    """The text of an activation's functions, and the arguments that they need."""

    text: str
    parts: int
    given: int
    """The number of learned numbers and knobs."""
    learned: int
    totals: int
    """The number of sums over all rows that `learn` adds to."""


_ACTIVATE = (
    "const T *given, T *hidden, T *active, std::ptrdiff_t hidden_stride, "
    "std::ptrdiff_t stride, std::ptrdiff_t pitch, int rows, int width, int end"
)
_LEARN = (
    "const T *given, const T *hidden, const T *gradient, T *totals, std::ptrdiff_t hidden_stride, "
    "std::ptrdiff_t stride, std::ptrdiff_t pitch, int rows, int width, int end"
)


def write_activation(
    apply: Apply, parts: int, learned: Mapping[str, Tensor], knobs: Mapping[str, float], dtype: torch.dtype
) -> ActivationCode:
    """Return an activation's code, from examples of its numbers and knobs; raises NotOfRows."""
    read = _record(apply, parts, learned, knobs, dtype)
    places = [f"hidden + {n} * pitch" if n else "hidden" for n in range(parts)]
    head = {node: f"load<T>(given + {n} * W<T>)" for n, node in enumerate(read.given)}
    hidden = dict(zip(read.hidden, places, strict=True))
    activate = Function(
        name="activate",
        parameters=_ACTIVATE,
        advance="hidden += hidden_stride, active += stride;",
        rows={},
        keys=hidden,
        outputs=[(read.values, "active"), *zip(read.slopes, places, strict=True)],
        length="width",
    )
    totals = [node for node in reachable(read.by_learned) if node.what == "total"]
    learn = Function(
        name="learn",
        parameters=_LEARN,
        advance="hidden += hidden_stride, gradient += stride;",
        rows={},
        keys={**hidden, read.gradient: "gradient"},
        outputs=[],
        totals=totals,
        length="width",
    )
    sums = {node: f"load<T>(totals + {n} * W<T>)" for n, node in enumerate(totals)}
    signature = "void finish_numbers(const T *given, const T *totals, T *to)"
    finish = write_numbers(signature, read.by_learned, dtype, head | sums)
    text = "\n".join(
        [
            f"typedef {TYPES[dtype]} T;",
            '#include "row_functions.hpp"',
            "namespace rows {",
            write_function(activate, dtype, head),
            *([write_function(learn, dtype, head), finish] if learned else []),
            "}",
            "ACTIVATION",
            *(["LEARNED_ACTIVATION"] if learned else []),
            "",
        ]
    )
    return ActivationCode(text, parts, len(read.given), len(learned), len(totals))


@dataclass(frozen=True)
class _Read:
    """An activation that was recorded and read."""

    hidden: list[Node]
    """The numbers of each part."""
    gradient: Node
    given: list[Node]
    values: Operand
    slopes: list[Operand]
    """The slopes by the numbers of each part."""
    by_learned: list[Operand]


def _record(
    apply: Apply, parts: int, learned: Mapping[str, Tensor], knobs: Mapping[str, float], dtype: torch.dtype
) -> _Read:
    graph = Graph()
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(QUERIES, parts * KEYS, dtype=dtype, generator=generator)
    gradient = torch.randn(QUERIES, KEYS, dtype=dtype, generator=generator)
    ones = torch.ones(QUERIES, KEYS, dtype=dtype)
    numbers = {name: value.detach().clone() for name, value in learned.items()}
    given_knobs = {name: torch.tensor(value, dtype=torch.float64) for name, value in knobs.items()}
    for leaf in (hidden, *numbers.values()):
        leaf.requires_grad_()
    recording = Recorder([hidden, gradient, ones, *numbers.values(), *given_knobs.values()])
    with recording, loops.recording(), torch.enable_grad():
        values = apply(hidden, numbers, given_knobs)
        if values.shape != gradient.shape:
            raise NotOfRows("it does not make one number of each channel")
        slopes = _gradients(values, [hidden], ones)
        by_learned = _gradients(values, [*numbers.values()], gradient)

    def of_keys(at_visible: Operand, at_hidden: Operand | None) -> TensorFormula:
        return TensorFormula((QUERIES, KEYS), dtype, at_visible, at_hidden)

    inputs = [graph.input(f"hidden {n}", Level.KEY) for n in range(parts)]
    incoming = graph.input("gradient", Level.KEY)
    incoming_formula = of_keys(incoming, 0.0)  # beyond the last channel no gradient comes in
    leaves: dict[Slot, TensorFormula] = {
        recording.leaves[id(hidden)]: side_by_side([of_keys(node, None) for node in inputs]),
        recording.leaves[id(gradient)]: incoming_formula,
        recording.leaves[id(ones)]: of_keys(1.0, 1.0),
    }
    given: list[Node] = []
    for name, tensor in (*numbers.items(), *given_knobs.items()):
        if tensor.numel() != 1:
            raise NotOfRows(f"{name} is more than a number")
        given.append(graph.input(f"given {len(given)} {name}", Level.HEAD))
        shape = tuple(tensor.shape)
        leaves[recording.leaves[id(tensor)]] = TensorFormula(shape, tensor.dtype, given[-1], given[-1])
    reader = RecordingReader(graph, leaves, dtype)
    reader.read(recording.operations)

    def found(tensor: Tensor | None) -> list[Operand]:
        formula = reader.formula_of(recording.slot(tensor)) if tensor is not None else None
        return [part.visible for part in formula.parts or (formula,)] if formula else [0.0]

    of_values, of_parts = found(values)[0], found(slopes[0])
    result = _Read(inputs, incoming, given, of_values, of_parts * (parts // len(of_parts)), [])
    nodes = reachable([of_values, *of_parts])
    if any(node.what != "input" and node.level == Level.ROW for node in nodes):
        raise NotOfRows("it mixes channels")
    for name, tensor in zip(numbers, by_learned, strict=True):
        [operand] = found(tensor)
        if isinstance(operand, Node) and operand.level in (Level.ROW, Level.KEY):
            raise NotOfRows(f"the gradient by {name} is not a sum over rows")
        result.by_learned.append(operand)
    return result


def _gradients(values: Tensor, wanted: Sequence[Tensor], gradient: Tensor) -> list[Tensor | None]:
    if not wanted or not values.requires_grad:
        return [None] * len(wanted)
    return gradients(values, wanted, gradient)
