"""A recording as loops and calls.

What is cheap, or needed once, is computed where it is needed; what a product reads, what is dear and needed several
times, sums and results are stored, in the order of elements that torch's own tensors have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from workers.numerics.fusion.formulas import COMPARISONS, common_type, cost_of, formula_of, has_formula
from workers.numerics.fusion.values import TYPES, CannotFuse, Kind, contiguous_strides
from workers.numerics.programs.indices import Index, linear, unravel
from workers.numerics.programs.recording import Recording, name_of
from workers.numerics.programs.values import (
    Body,
    Buffer,
    Call,
    Lazy,
    Loops,
    Stored,
    Value,
    element,
)
from workers.numerics.simplifying import Operation, Slot, slots_in

_LIGHT = 4
"""Weight of what is computed again for each of its uses."""
_HEAVY = 40
"""Weight of what is stored even if it is used once: texts must not grow without bound."""
_SHORT_SCATTER = 8
"""Numbers of a row that each element looks through for its own."""
_DIVISIONS = frozenset({"remainder", "floor_divide", "div"})
_VIEWS = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "expand"),
        *("transpose", "permute", "t", "slice", "select", "split", "split_with_sizes", "unbind", "lift", "unfold"),
        *("transpose_", "t_", "squeeze_", "unsqueeze_", "diagonal", "unsafe_split"),
    }
)
"""Operations that say other axes of the same numbers."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_SPLINES = ("graft::spline", "graft::spline_gradient")
_CALLS = frozenset({*_PRODUCTS, *_SPLINES})
"""Operations that read memory."""
_KEYWORDS = frozenset(
    {
        *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "sparse_grad"),
        *("alpha", "beta", "rounding_mode", "approximate", "correction", "min", "max", "nan", "posinf", "neginf"),
    }
)
"""Keywords that operations are lowered with, or that change no number."""


def knows(name: str) -> bool:
    """Return whether programs have an operation of this name, at least for some arguments."""
    return name in _VIEWS or name in _HANDLERS or name == "copy_" or has_formula(_out_of_place(name))


class Lowering:
    """A recording's loops and calls, in the order of the recording; raises CannotFuse."""

    def __init__(self, recording: Recording) -> None:
        self.steps: list[Loops | Call] = []
        self.results: list[Stored] = []
        self._kinds = recording.kinds
        self._values: dict[Slot, Any] = {}
        self._constants: dict[int, Stored] = {}
        self._alive: list[Tensor] = []
        """Constants by whose ids they are known."""
        for number, slot in enumerate(recording.given):
            kind = self._kinds[slot]
            if kind.dtype in TYPES:
                buffer = Buffer(kind.numel, kind.dtype, given=number)
                self._values[slot] = Stored(buffer, kind.shape, contiguous_strides(kind.shape))
        self._count_uses(recording)
        for number, operation in enumerate(recording.operations):
            self._lower(operation, number)
        for number, result in enumerate(recording.results):
            self.results.append(self._result(self._operand(result), number))

    # -- uses --------------------------------------------------------------------------------------------------------

    def _count_uses(self, recording: Recording) -> None:
        """Note of each slot how often it is read, the numbers of it that one reading needs, and whether a product does.

        What reads a view reads what it is a view of.
        """
        self._roots: dict[Slot, Slot] = {}
        roots = self._roots
        self._uses: dict[Slot, int] = {}
        self._spread: dict[Slot, int] = {}
        self._stored: set[Slot] = set()
        self._last = dict.fromkeys(slots_in(recording.results), len(recording.operations))
        """After which operation a slot is not read any more."""
        for number, operation in enumerate(recording.operations):
            for slot in slots_in(operation.arguments):
                self._last[slot] = max(number, self._last.get(slot, 0))
            name = name_of(operation.function)
            read = {roots.get(slot, slot) for slot in slots_in(operation.arguments)}
            if name in _VIEWS or name == "to":
                roots |= {slot: root for slot in operation.results for root in read if slot not in read}
                continue
            size = max([0, *(self._kinds[slot].numel for slot in operation.results)])
            for leaf in pytree.tree_leaves(operation.arguments):
                if isinstance(leaf, Slot):
                    root = roots.get(leaf, leaf)
                    self._uses[root] = self._uses.get(root, 0) + 1
                    self._spread[root] = max(self._spread.get(root, 0), size)
            if name in _CALLS:
                self._stored |= read
        for slot in slots_in(recording.results):
            self._stored.add(roots.get(slot, slot))

    def _is_stored(self, slot: Slot, lazy: Lazy) -> bool:
        """Return whether a value is computed once and stored."""
        if slot in self._stored or lazy.weight > _HEAVY:
            return True
        spread = self._spread.get(slot, 0) > math.prod(lazy.shape)
        return lazy.weight > _LIGHT and (self._uses.get(slot, 0) > 1 or spread)

    # -- operations --------------------------------------------------------------------------------------------------

    def _lower(self, operation: Operation, number: int) -> None:
        name = name_of(operation.function)
        positional, keywords = operation.arguments
        if any(slot in self._kinds and self._kinds[slot].dtype not in TYPES for slot in operation.results):
            raise CannotFuse(f"{name} of {self._kinds[operation.results[0]].dtype}")
        if unknown := sorted(keywords.keys() - _KEYWORDS):
            raise CannotFuse(f"{name} with {unknown[0]}")
        if any(isinstance(one, torch.dtype) for one in positional):  # `view` of the same bytes as other numbers
            raise CannotFuse(f"{operation.function}")
        if name in _VIEWS:
            self._view(operation)
        elif name == "to":
            [slot], source = operation.results, self._operand(positional[0])
            if source.dtype == self._kinds[slot].dtype:
                self._values[slot] = source
            else:
                self._define(slot, self._cast(source, slot))
        elif not slots_in(operation.arguments) and name != "full":
            constants = pytree.tree_leaves(operation.function(*positional, **keywords))
            self._values |= dict(zip(operation.results, map(self._operand, constants), strict=True))
        elif name in _HANDLERS:
            _HANDLERS[name](self, operation, positional, keywords)
        else:
            base = _out_of_place(name)
            if base != name:
                self._check_in_place(operation, number)
            self._define(operation.results[0], self._pointwise(base, positional, keywords, operation.results[0]))

    def _operand(self, leaf: Any) -> Any:
        """Return the value of a slot or of a constant, or a number."""
        if isinstance(leaf, Slot):
            if leaf not in self._values:
                raise CannotFuse(f"{self._kinds[leaf].dtype}")
            return self._values[leaf]
        if isinstance(leaf, Tensor):
            if not leaf.dim():
                return leaf.item()
            if id(leaf) not in self._constants:
                if leaf.dtype not in TYPES:
                    raise CannotFuse(str(leaf.dtype))
                self._alive.append(leaf)
                kept = leaf.contiguous()
                buffer = Buffer(kept.numel(), kept.dtype)
                buffer.constant = kept.to(buffer.kept_as)
                self._constants[id(leaf)] = Stored(buffer, tuple(kept.shape), contiguous_strides(kept.shape))
            return self._constants[id(leaf)]
        return leaf

    def _define(self, slot: Slot, value: Value) -> None:
        if isinstance(value, Lazy) and self._is_stored(slot, value):
            value = self._store(value, self._kinds[slot].strides)
        self._values[slot] = value

    def _check_in_place(self, operation: Operation, number: int) -> None:
        """Raise CannotFuse where an operation writes into what is read later under another name."""
        [slot, *_], target = operation.results, operation.arguments[0][0]
        root = self._roots.get(slot, slot)
        shown = [one for one in self._values if one != slot and self._roots.get(one, one) == root]
        if (
            target != slot
            or any(self._last.get(one, 0) > number for one in shown)
            or not self._is_own(self._values.get(slot))
        ):
            raise CannotFuse(f"{name_of(operation.function)} into a tensor that others show")

    def _is_own(self, value: Any) -> bool:
        """Return whether a value is none that the program is given."""
        return isinstance(value, Lazy) or (isinstance(value, Stored) and value.buffer.given is None)

    def _view(self, operation: Operation) -> None:
        positional, keywords = operation.arguments
        source = self._operand(positional[0])
        if name_of(operation.function) in ("reshape", "_reshape_alias"):  # a view, or a copy where there can be none
            shape = self._kinds[operation.results[0]].shape
            operation = operation._replace(function=torch.ops.aten.view.default)
            positional, keywords = [positional[0], shape], {}
            if isinstance(source, Stored) and not _may_view(source, shape):
                source = self._store(source)
        strides = source.strides if isinstance(source, Stored) else contiguous_strides(source.shape)
        # Tensors of the device `meta` have shapes and strides alone.
        like = torch.empty_strided(source.shape, strides, device="meta")
        found = pytree.tree_leaves(operation.function(like, *positional[1:], **keywords))
        for slot, view in zip(operation.results, found, strict=True):
            own = tuple(view.shape), tuple(view.stride()), view.storage_offset()
            if isinstance(source, Stored):
                self._values[slot] = Stored(source.buffer, own[0], own[1], source.offset + own[2])
            elif own[0] == source.shape and own[1] == strides:
                self._values[slot] = source
            else:
                self._values[slot] = _view_of(source, *own)

    def _pointwise(self, name: str, positional: list[Any], keywords: Mapping[str, Any], slot: Slot) -> Lazy:
        kind = self._kinds[slot]
        if name in COMPARISONS:
            template, operands = COMPARISONS[name], positional[: 2 if "{1}" in COMPARISONS[name] else 1]
            dtype = common_type(operands, [self._kind(one) for one in operands])
        else:
            known = name != "copy"
            formula = formula_of(name, positional, dict(keywords), kind.dtype) if known else ("{0}", positional[1:2])
            (template, operands), dtype = formula, kind.dtype
        if name in _DIVISIONS and not dtype.is_floating_point:  # a processor stops at an integer division by zero
            divisor = self._operand(operands[1])
            if isinstance(divisor, Stored | Lazy) or not divisor:
                raise CannotFuse(f"{name} of whole numbers by {'a tensor' if divisor else divisor}")
        return _formula(template, [self._operand(one) for one in operands], kind, dtype)

    def _kind(self, operand: Any) -> Kind | None:
        if isinstance(operand, Slot):
            return self._kinds[operand]
        return Kind.of(operand) if isinstance(operand, Tensor) else None

    def _cast(self, source: Any, slot: Slot) -> Lazy:
        return _formula("{0}", [source], self._kinds[slot], self._kinds[slot].dtype)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _store(self, value: Value, strides: Sequence[int] | None = None) -> Stored:
        """Compute a value once; `strides`, of a tensor without gaps, say in which order of axes."""
        numel = math.prod(value.shape)
        dense = strides is not None and _is_dense(value.shape, strides)
        own = tuple(strides) if strides is not None and dense else contiguous_strides(value.shape)
        to = Stored(Buffer(numel, value.dtype), value.shape, own)
        self._copy(value, to)
        return to

    def _copy(self, value: Any, to: Stored) -> None:
        """Write a value, or a number, into memory."""
        if not math.prod(to.shape):
            return
        order = sorted((axis for axis, size in enumerate(to.shape) if size > 1), key=lambda axis: -to.strides[axis])
        places = _Places(len(to.shape), order)

        self.steps.append(
            Loops(
                axes=tuple(to.shape[axis] for axis in order),
                value=lambda body, indices: element(body, value, places(indices), to.dtype),
                dtype=to.dtype,
                buffer=to.buffer,
                place=lambda body, indices: linear(to.offset, to.strides, places(indices)),
            )
        )

    def _result(self, value: Any, number: int) -> Stored:
        if (
            isinstance(value, Stored)
            and value.buffer.is_made
            and value.strides == contiguous_strides(value.shape)
            and value.buffer.numel == math.prod(value.shape)
        ):
            value.buffer.result = number
            return value
        if not isinstance(value, Stored | Lazy):
            raise CannotFuse("a result that is a number")
        to = Stored(
            Buffer(math.prod(value.shape), value.dtype, result=number), value.shape, contiguous_strides(value.shape)
        )
        self._copy(value, to)
        return to

    def _in_memory(self, leaf: Any) -> Stored:
        value = self._operand(leaf)
        if isinstance(value, Stored):
            return value
        return self._store(value)

    # -- operations of their own -------------------------------------------------------------------------------------

    def clone(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Copy a tensor, where its order in memory changes."""
        [slot], source = operation.results, self._operand(positional[0])
        kind = self._kinds[slot]
        if isinstance(source, Stored) and source.strides != kind.strides:
            self._values[slot] = self._store(source, kind.strides)
        else:
            self._define(slot, self._cast(source, slot) if isinstance(source, Lazy) else source)

    def full(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Make a tensor of equal numbers."""
        kind = self._kinds[operation.results[0]]
        self._define(operation.results[0], _formula("{0}", [positional[1]], kind, kind.dtype))

    def where(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Choose between two operands."""
        if name_of(operation.function) == "masked_fill":
            source, mask, value = positional
            positional = [mask, value, source]
        kind = self._kinds[operation.results[0]]
        mask, one, other = (self._operand(leaf) for leaf in positional[:3])

        def load(body: Body, indices: Sequence[Index]) -> str:
            chosen = element(body, mask, indices, torch.bool)
            found, otherwise = (element(body, value, indices, kind.dtype) for value in (one, other))
            return body.hold(f"{chosen} ? {found} : {otherwise}", kind.dtype)

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 1 + _weight([mask, one, other])))

    def reduce(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Sum, or find an extreme, along axes."""
        slot, name = operation.results[0], name_of(operation.function)
        source = self._operand(positional[0])
        axes = positional[1] if len(positional) > 1 else None
        axes = axes if isinstance(axes, list) else [] if axes is None else [axes]
        if name in ("amax", "amin") and not source.dtype.is_floating_point:
            raise CannotFuse("an extreme of whole numbers")
        if name in ("all", "any") and (self._kinds[slot].dtype != torch.bool or axes == [] != positional[1:]):
            raise CannotFuse(f"{operation.function} of {source.dtype} along {axes}")
        own = _axes(axes, len(source.shape))
        total = self._reduce(source, own, "sum" if name == "mean" else name, self._kinds[slot])
        self._values[slot] = total
        if name == "mean":
            count = math.prod(source.shape[axis] for axis in own)
            self._define(slot, _formula(f"{{0}} / {{T}}({count})", [total], self._kinds[slot], total.dtype))

    def _reduce(self, source: Value, axes: Sequence[int], how: str, kind: Kind) -> Stored:
        kept = [axis for axis in range(len(source.shape)) if axis not in axes]
        if not math.prod(source.shape):
            raise CannotFuse("a sum of nothing")
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        own_strides = contiguous_strides([source.shape[axis] for axis in kept])
        strides = [0] * len(source.shape)
        for axis, stride in zip(kept, own_strides, strict=True):
            strides[axis] = stride
        sizes, order, places = _loops_over(source.shape)
        reduced = frozenset(number for number, axis in enumerate(order) if axis in axes)
        self.steps.append(
            Loops(
                axes=sizes,
                value=lambda body, indices: element(body, source, places(indices), kind.dtype),
                dtype=kind.dtype,
                buffer=to.buffer,
                place=lambda body, indices: linear(0, strides, places(indices)),
                how=how if reduced else "store",
                reduced=reduced,
            )
        )
        return to

    def var_mean(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Find variance and mean along axes."""
        source = self._operand(positional[0])
        variance, *others = operation.results
        if len(positional) > 2 and isinstance(positional[2], bool):  # dim, unbiased, keepdim
            axes, correction = positional[1], int(positional[2])
        else:
            axes, correction = positional[1] if len(positional) > 1 else None, keywords.get("correction", 1)
        own = _axes([] if axes is None else axes, len(source.shape))
        count = math.prod(source.shape[axis] for axis in own)
        kind = self._kinds[variance]
        total = self._reduce(source, own, "sum", kind)
        found = self._store(_formula(f"{{0}} / {{T}}({count})", [total], kind, kind.dtype))
        self._values |= dict.fromkeys(others, found)
        shape = tuple(1 if axis in own else size for axis, size in enumerate(source.shape))
        beside = Stored(found.buffer, shape, contiguous_strides(shape))
        whole = Kind(source.shape, contiguous_strides(source.shape), source.dtype)
        squares = _formula("({0} - {1}) * ({0} - {1})", [source, beside], whole, source.dtype)
        total = self._reduce(squares, own, "sum", kind)
        self._define(
            variance,
            _formula(f"{{0}} / {{T}}({max(0, count - correction)})", [total], self._kinds[variance], kind.dtype),
        )

    def scan(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Add up along an axis."""
        [slot], source = operation.results, self._operand(positional[0])
        kind = self._kinds[slot]
        axis = positional[1] % max(1, len(source.shape))
        if not source.shape or source.shape[axis] == 1:
            self._define(slot, self._cast(source, slot))
            return
        strides = contiguous_strides(source.shape)
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, strides)
        sizes, order, places = _loops_over(source.shape)
        self.steps.append(
            Loops(
                axes=sizes,
                value=lambda body, indices: element(body, source, places(indices), kind.dtype),
                dtype=kind.dtype,
                buffer=to.buffer,
                place=lambda body, indices: linear(0, strides, places(indices)),
                how="scan",
                scanned=(order.index(axis), strides[axis]),
            )
        )
        self._values[slot] = to

    def flip(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Turn axes round."""
        source = self._operand(positional[0])
        axes = _axes(positional[1], len(source.shape)) if positional[1] else []
        if isinstance(source, Stored):
            offset = source.offset + sum((source.shape[axis] - 1) * source.strides[axis] for axis in axes)
            strides = [-one if axis in axes else one for axis, one in enumerate(source.strides)]

            def load(body: Body, indices: Sequence[Index]) -> str:
                return body.load(source.buffer, linear(offset, strides, indices))
        else:

            def load(body: Body, indices: Sequence[Index]) -> str:
                own = [
                    Index(source.shape[axis] - 1).plus(index, -1) if axis in axes else index
                    for axis, index in enumerate(indices)
                ]
                return source.load(body, own)

        self._define(operation.results[0], Lazy(source.shape, source.dtype, load, source.weight))

    def embedding(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Read rows of a table."""
        table, index = (self._operand(leaf) for leaf in positional[:2])
        kind = self._kinds[operation.results[0]]

        def load(body: Body, indices: Sequence[Index]) -> str:
            row = body.read_index(element(body, index, indices[:-1], torch.int64), table.shape[0])
            return table.load(body, [row, indices[-1]])

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, _LIGHT + 1))

    def embedding_gradient(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Add rows up where an index says."""
        gradient, index, rows, padding, by_frequency = positional
        if padding >= 0 or by_frequency:
            raise CannotFuse("an embedding with a padding index or scaled by frequency")
        gradient, index = self._operand(gradient), self._operand(index)
        if not math.prod(gradient.shape):
            raise CannotFuse("the gradient of an embedding of nothing")
        kind = self._kinds[operation.results[0]]
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        sizes, order, places = _loops_over(gradient.shape)
        last = len(gradient.shape) - 1

        def place(body: Body, indices: Sequence[Index]) -> Index:
            *others, column = places(indices)
            row = body.read_index(element(body, index, others, torch.int64), rows)
            return Index().plus(row, gradient.shape[-1]).plus(column)

        self.steps.append(
            Loops(
                axes=sizes,
                value=lambda body, indices: element(body, gradient, places(indices), kind.dtype),
                dtype=kind.dtype,
                buffer=to.buffer,
                place=place,
                how="sum",
                reduced=frozenset(number for number, axis in enumerate(order) if axis != last),
                is_scattered=True,
            )
        )
        self._values[operation.results[0]] = to

    def gather(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Read where an index says along an axis."""
        source, index = self._operand(positional[0]), self._operand(positional[2])
        axis = positional[1] % max(1, len(source.shape))
        kind = self._kinds[operation.results[0]]

        def load(body: Body, indices: Sequence[Index]) -> str:
            own = [*indices]
            own[axis] = body.read_index(element(body, index, indices, torch.int64), source.shape[axis])
            return source.load(body, own)

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 2 + _weight([source, index])))

    def scatter_add(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Add numbers where an index says; of a few in each row, each element looks for those that are its own."""
        source, index, added = (self._operand(positional[number]) for number in (0, 2, 3))
        kind = self._kinds[operation.results[0]]
        axis = positional[1] % max(1, len(kind.shape))
        others = [number for number in range(len(kind.shape)) if number != axis]
        if index.shape[axis] > _SHORT_SCATTER or any(index.shape[one] != kind.shape[one] for one in others):
            self._scatter(operation.results[0], source, axis, index, added)
            return

        def load(body: Body, indices: Sequence[Index]) -> str:
            total = element(body, source, indices, kind.dtype)
            for term in range(index.shape[axis]):
                own = [*indices]
                own[axis] = Index(term)
                chosen = f"{index.load(body, own)} == {indices[axis].write()}"
                term_of = element(body, added, own, kind.dtype)
                total = body.hold(f"{total} + ({chosen} ? {term_of} : {TYPES[kind.dtype]}(0))", kind.dtype)
            return total

        weight = 2 + _weight([source, index, added])
        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, weight))

    def _scatter(self, slot: Slot, source: Any, axis: int, index: Any, added: Any) -> None:
        """Add numbers where an index says, one after another, to zeros, and to these the source."""
        kind = self._kinds[slot]
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        sizes, order, places = _loops_over(index.shape)

        def place(body: Body, indices: Sequence[Index]) -> Index:
            own = places(indices)
            own[axis] = body.read_index(element(body, index, own, torch.int64), kind.shape[axis])
            return linear(0, to.strides, own)

        self.steps.append(
            Loops(
                axes=sizes,
                value=lambda body, indices: element(body, added, places(indices), kind.dtype),
                dtype=kind.dtype,
                buffer=to.buffer,
                place=place,
                how="sum",
                reduced=frozenset(number for number, at in enumerate(order) if at == axis),
                is_scattered=True,
            )
        )
        self._define(slot, _formula("{0} + {1}", [source, to], kind, kind.dtype))

    def triangle(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Keep what is on one side of a diagonal."""
        source, kind = self._operand(positional[0]), self._kinds[operation.results[0]]
        diagonal = positional[1] if len(positional) > 1 else 0
        sign = "<=" if name_of(operation.function) == "tril" else ">="

        def load(body: Body, indices: Sequence[Index]) -> str:
            kept = f"{indices[-1].write()} {sign} {indices[-2].write()} + {diagonal}"
            return body.hold(
                f"{kept} ? {element(body, source, indices, kind.dtype)} : {TYPES[kind.dtype]}(0)", kind.dtype
            )

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 2 + source.weight))

    # -- pieces ------------------------------------------------------------------------------------------------------

    def join(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Put tensors beside one another."""
        parts = [self._operand(part) for part in positional[0]]
        kind = self._kinds[operation.results[0]]
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        axis, start = (positional[1] if len(positional) > 1 else 0) % max(1, len(kind.shape)), 0
        for part in parts:
            if name_of(operation.function) == "stack":
                place = _without(to, axis, start)
                start += 1
            elif len(part.shape) != len(kind.shape):
                continue  # torch's old way to say that there is nothing
            else:
                place = _sliced(to, axis, start, start + part.shape[axis])
                start += part.shape[axis]
            self._copy(part, place)
        self._values[operation.results[0]] = to

    def pad(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Put numbers around a tensor, or cut it off."""
        source, widths = self._operand(positional[0]), positional[1]
        number = positional[2] if len(positional) > 2 else 0
        rank = len(source.shape)
        sides = [(0, 0)] * rank
        for place in range(len(widths) // 2):
            sides[rank - 1 - place] = widths[2 * place], widths[2 * place + 1]
        for axis, (before, after) in enumerate(sides):
            if before < 0 or after < 0:
                end = source.shape[axis] + min(0, after)
                source = _sliced(source, axis, max(0, -before), end)
        self._within(operation, source, [(max(0, before), 1) for before, _ in sides], number)

    def slice_gradient(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Put a tensor where it was a slice of a larger one, of zeros."""
        source, name = self._operand(positional[0]), name_of(operation.function)
        sizes, axis = positional[1], positional[2] % len(positional[1])
        starts = [(0, 1)] * len(sizes)
        if name == "select_backward":
            index = positional[3] % sizes[axis]
            like = torch.empty(source.shape, device="meta").unsqueeze(axis)
            source = (
                Stored(
                    source.buffer,
                    tuple(like.shape),
                    (*source.strides[:axis], 1, *source.strides[axis:]),
                    source.offset,
                )
                if isinstance(source, Stored)
                else _view_of(source, tuple(like.shape), tuple(like.stride()), 0)
            )
            starts[axis] = index, 1
        else:
            start, step = positional[3], positional[5]
            start = 0 if start is None else start
            starts[axis] = max(0, min(sizes[axis], start + sizes[axis] if start < 0 else start)), step
        self._within(operation, source, starts, 0)

    def _within(self, operation: Operation, source: Value, starts: Sequence[tuple[int, int]], number: float) -> None:
        """Write a tensor into a larger one, and a number around it."""
        kind = self._kinds[operation.results[0]]
        if [*source.shape] == [*kind.shape]:
            self._values[operation.results[0]] = source
            return
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        inside = to
        for axis, (start, step) in enumerate(starts):
            count, size = source.shape[axis], kind.shape[axis]
            self._copy(number, _sliced(inside, axis, 0, start))
            for phase in range(step):  # elements between those of the source, and behind them
                first = start + phase + (count * step if not phase else 0)
                self._copy(number, _sliced(inside, axis, first, size, step))
            inside = _sliced(inside, axis, start, start + (count - 1) * step + 1, step)
        self._copy(source, inside)
        self._values[operation.results[0]] = to

    # -- products ----------------------------------------------------------------------------------------------------

    def product(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Multiply matrices, or a batch of them."""
        name, [slot] = name_of(operation.function), operation.results
        kind = self._kinds[slot]
        row: Value | None = None
        if name in ("addmm", "baddbmm"):
            row, *positional = [self._operand(positional[0]), *positional[1:]]
            if any(keywords.get(one, 1) != 1 for one in ("alpha", "beta")):
                raise CannotFuse("a product with factors")
        if not kind.dtype.is_floating_point:
            raise CannotFuse("a product of whole numbers")
        left, right = (_batched(self._in_memory(leaf)) for leaf in positional[:2])
        to = Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape))
        if not left.shape[2]:
            raise CannotFuse("a product of nothing")
        is_row = isinstance(row, Stored) and row.shape == kind.shape[-1:] and row.strides == (1,)
        if kind.numel:
            batch = _batched(to)
            sizes = [*left.shape, right.shape[2], *left.strides, *right.strides, *batch.strides[:2]]
            added = row if isinstance(row, Stored) and is_row else None
            self.steps.append(Call("product", [left, right, added], [batch], sizes))
        self._values[slot] = to
        if row is not None and not is_row:
            self._define(slot, _formula("{0} + {1}", [to, row], kind, kind.dtype))

    # -- splines -----------------------------------------------------------------------------------------------------

    def spline(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Interpolate between learned knots, or take the gradient of that."""
        *values, knots, low, scale = (self._dense(leaf) for leaf in positional)
        written: list[Stored] = []
        for slot in operation.results:
            kind = self._kinds[slot]
            written.append(Stored(Buffer(kind.numel, kind.dtype), kind.shape, contiguous_strides(kind.shape)))
            self._values[slot] = written[-1]
        sizes = [math.prod(values[0].shape), math.prod(knots.shape)]
        if sizes[0]:
            name = name_of(operation.function).removeprefix("graft::")
            self.steps.append(Call(name, [*values, knots, low, scale], written, sizes))

    def _dense(self, leaf: Any) -> Stored:
        """Return numbers in memory that lie there side by side, in their order."""
        value = self._in_memory(leaf)
        strides = contiguous_strides(value.shape)
        if any(own != dense for own, dense, size in zip(value.strides, strides, value.shape, strict=True) if size > 1):
            return self._store(value, strides)
        return value


_HANDLERS: dict[str, Callable[[Lowering, Operation, list[Any], Mapping[str, Any]], None]] = {
    "clone": Lowering.clone,
    **dict.fromkeys(("full", "full_like"), Lowering.full),
    "where": Lowering.where,
    "masked_fill": Lowering.where,
    **dict.fromkeys(("sum", "mean", "amax", "amin", "all", "any"), Lowering.reduce),
    **dict.fromkeys(("var", "var_mean"), Lowering.var_mean),
    "cumsum": Lowering.scan,
    "flip": Lowering.flip,
    "embedding": Lowering.embedding,
    "embedding_dense_backward": Lowering.embedding_gradient,
    "gather": Lowering.gather,
    "scatter_add": Lowering.scatter_add,
    **dict.fromkeys(("tril", "triu"), Lowering.triangle),
    **dict.fromkeys(("cat", "stack"), Lowering.join),
    "constant_pad_nd": Lowering.pad,
    **dict.fromkeys(("slice_backward", "select_backward"), Lowering.slice_gradient),
    **dict.fromkeys(_PRODUCTS, Lowering.product),
    **dict.fromkeys(_SPLINES, Lowering.spline),
}


def _formula(template: str, operands: Sequence[Any], kind: Kind, dtype: torch.dtype) -> Lazy:
    """Return what a formula makes of operands' elements, computed in a type."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        found = [element(body, one, indices, dtype) for one in operands]
        text = template.format(*(one if one.isidentifier() else f"({one})" for one in found), T=TYPES[dtype])
        return found[0] if template == "{0}" and dtype == kind.dtype else body.hold(text, kind.dtype)

    return Lazy(kind.shape, kind.dtype, load, (template != "{0}") * cost_of(template) + _weight(operands))


def _loops_over(shape: Sequence[int]) -> tuple[tuple[int, ...], list[int], _Places]:
    """Return loops over a shape's elements: how often each runs, its axis, and what gives an element's place."""
    order = [axis for axis, size in enumerate(shape) if size > 1]
    return tuple(shape[axis] for axis in order), order, _Places(len(shape), order)


class _Places:
    """Indices along all axes, of those of loops over some."""

    def __init__(self, rank: int, order: Sequence[int]) -> None:
        self._rank, self._order = rank, order

    def __call__(self, indices: Sequence[Index]) -> list[Index]:
        own = [Index()] * self._rank
        for axis, index in zip(self._order, indices, strict=True):
            own[axis] = index
        return own


def _may_view(source: Stored, shape: tuple[int, ...]) -> bool:
    """Return whether elements in memory may have these axes, in their order, as they lie there."""
    try:
        torch.empty_strided(source.shape, source.strides, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def _weight(operands: Sequence[Any]) -> int:
    return sum(one.weight for one in operands if isinstance(one, Stored | Lazy))


def _view_of(source: Lazy, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Lazy:
    """Return a view of a value, by strides over its elements in the order of its axes."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        return source.load(body, unravel(linear(offset, strides, indices), source.shape))

    return Lazy(shape, source.dtype, load, source.weight)


def _sliced(value: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
    """Return the part of a value from `start` to below `end` along an axis."""
    shape = (*value.shape[:axis], len(range(start, end, step)), *value.shape[axis + 1 :])
    if isinstance(value, Stored):
        strides = [stride * step if at == axis else stride for at, stride in enumerate(value.strides)]
        return Stored(value.buffer, shape, tuple(strides), value.offset + start * value.strides[axis])

    def load(body: Body, indices: Sequence[Index]) -> str:
        own = [Index(start).plus(one, step) if at == axis else one for at, one in enumerate(indices)]
        return value.load(body, own)

    return Lazy(shape, value.dtype, load, value.weight)


def _without(value: Stored, axis: int, index: int) -> Stored:
    """Return the part of memory at an index of an axis."""
    shape, strides = value.shape, value.strides
    return Stored(
        value.buffer,
        (*shape[:axis], *shape[axis + 1 :]),
        (*strides[:axis], *strides[axis + 1 :]),
        value.offset + index * strides[axis],
    )


def _batched(value: Stored) -> Stored:
    """Return matrices as a batch of one."""
    if len(value.shape) == 3:
        return value
    return Stored(value.buffer, (1, *value.shape), (0, *value.strides), value.offset)


def _axes(axes: Sequence[int] | int, rank: int) -> list[int]:
    own = [axes] if isinstance(axes, int) else [*axes]
    return sorted(axis % max(1, rank) for axis in own) if own else [*range(rank)]


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor's elements lie side by side, in whichever order of its axes."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _out_of_place(name: str) -> str:
    """Return the name of an operation that makes a tensor, where this one may write into one."""
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name
