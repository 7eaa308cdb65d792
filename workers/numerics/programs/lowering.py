"""Lowering: one lane's recorded tensor operations become loops over elements and library calls.

Each value is either `Lazy`, an expression that is computed again wherever an element is used, or `Stored` in
memory. Stored are the operands of products and splines, sums, results, and expressions that are expensive and
used several times; their elements have the order in memory that torch's own tensors have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from workers.numerics.codegen.formulas import COMPARISONS, common_type, cost_of, formula_of, has_formula, take_operands
from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind, contiguous_strides
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
"""Largest weight (cost of one element, as `Lazy.weight`) of a value that is computed again for each use."""
_HEAVY = 40
"""Values above this weight are stored even if used once, or the generated text could grow without bound."""
_SHORT_SCATTER = 8
"""Most indices of a row for which `scatter_add` compares every element with every index, without a loop."""
_DIVISIONS = frozenset({"remainder", "floor_divide", "div"})
_VIEWS = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "expand"),
        *("transpose", "permute", "t", "slice", "select", "split", "split_with_sizes", "unbind", "lift", "unfold"),
        *("transpose_", "t_", "squeeze_", "unsqueeze_", "diagonal", "unsafe_split"),
    }
)
"""Operations that show the elements of a tensor under other axes."""
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_SPLINES = ("graft::spline", "graft::spline_gradient")
_CALLS = frozenset({*_PRODUCTS, *_SPLINES})
"""Operations that become calls, whose operands have to be in memory."""
_KEYWORDS = frozenset(
    {
        *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "sparse_grad"),
        *("alpha", "beta", "rounding_mode", "approximate", "correction", "min", "max", "nan", "posinf", "neginf"),
    }
)
"""Keywords that lowering takes into account or that change no number; any other raises CannotGenerate."""


def knows(name: str) -> bool:
    """Return whether programs support the operation of this name, at least for some arguments."""
    return name in _VIEWS or name in _HANDLERS or name == "copy_" or has_formula(_out_of_place(name))


class Lowering:
    """The loops and calls of a recording, in its order, and where each of its results is stored.

    The constructor raises CannotGenerate for an operation that programs do not support.
    """

    def __init__(self, recording: Recording) -> None:
        self.steps: list[Loops | Call] = []
        self.results: list[Stored] = []
        self._kinds = recording.kinds
        self._values: dict[Slot, Any] = {}
        """The `Stored`, `Lazy` or number that each slot stands for."""
        self._constants: dict[int, Stored] = {}
        self._alive: list[Tensor] = []
        """The tensors of `_constants`: while they live, no other tensor gets their ids."""
        for number, slot in enumerate(recording.given):
            kind = self._kinds[slot]
            if kind.dtype in TYPES:
                buffer = Buffer(kind.numel, kind.dtype, given=number)
                self._values[slot] = Stored.whole(buffer, kind.shape)
        self._count_uses(recording)
        for number, operation in enumerate(recording.operations):
            self._lower(operation, number)
        for number, result in enumerate(recording.results):
            self.results.append(self._result(self._operand(result), number))

    # -- uses --------------------------------------------------------------------------------------------------------

    def _count_uses(self, recording: Recording) -> None:
        """Count the uses of each slot, and note the largest and the last one and whether it must be stored.

        Using a view counts as using the tensor that it is a view of, its root.
        """
        self._roots: dict[Slot, Slot] = {}
        """Slot of a view -> slot of the tensor that it shows."""
        roots = self._roots
        self._uses: dict[Slot, int] = {}
        """Slot -> how often operations read it or views of it; making a view does not count."""
        self._largest_use: dict[Slot, int] = {}
        """Slot -> elements of the largest tensor that an operation computes from it."""
        self._must_store: set[Slot] = set()
        self._last_use = dict.fromkeys(slots_in(recording.results), len(recording.operations))
        """Slot -> number of the last operation that needs it; results are needed after all operations."""
        for number, operation in enumerate(recording.operations):
            for slot in slots_in(operation.arguments):
                self._last_use[slot] = max(number, self._last_use.get(slot, 0))
            name = name_of(operation.function)
            sources = {roots.get(slot, slot) for slot in slots_in(operation.arguments)}
            if name in _VIEWS or name == "to":
                roots |= {slot: root for slot in operation.results for root in sources if slot not in sources}
                continue
            largest = max([0, *(self._kinds[slot].numel for slot in operation.results)])
            for leaf in pytree.tree_leaves(operation.arguments):
                if isinstance(leaf, Slot):
                    root = roots.get(leaf, leaf)
                    self._uses[root] = self._uses.get(root, 0) + 1
                    self._largest_use[root] = max(self._largest_use.get(root, 0), largest)
            if name in _CALLS:
                self._must_store |= sources
        for slot in slots_in(recording.results):
            self._must_store.add(roots.get(slot, slot))

    # -- operations --------------------------------------------------------------------------------------------------

    def _lower(self, operation: Operation, number: int) -> None:
        """Define the results of an operation; `number` is its position in the recording."""
        name = name_of(operation.function)
        positional, keywords = operation.arguments
        if any(slot in self._kinds and self._kinds[slot].dtype not in TYPES for slot in operation.results):
            raise CannotGenerate(f"{name} of {self._kinds[operation.results[0]].dtype}")
        if unknown := sorted(keywords.keys() - _KEYWORDS):
            raise CannotGenerate(f"{name} with {unknown[0]}")
        if any(isinstance(item, torch.dtype) for item in positional):  # `view` as another type
            raise CannotGenerate(f"{operation.function}")
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
        """Return the value of a slot or of a constant tensor; a number stays as it is."""
        if isinstance(leaf, Slot):
            if leaf not in self._values:
                raise CannotGenerate(f"{self._kinds[leaf].dtype}")
            return self._values[leaf]
        if isinstance(leaf, Tensor):
            if not leaf.dim():
                return leaf.item()
            if id(leaf) not in self._constants:
                if leaf.dtype not in TYPES:
                    raise CannotGenerate(str(leaf.dtype))
                self._alive.append(leaf)
                kept = leaf.contiguous()
                buffer = Buffer(kept.numel(), kept.dtype)
                buffer.constant = kept.to(buffer.kept_as)
                self._constants[id(leaf)] = Stored.whole(buffer, tuple(kept.shape))
            return self._constants[id(leaf)]
        return leaf

    def _define(self, slot: Slot, value: Value) -> None:
        """Note the value of a slot, stored if that costs less than to compute it for each use."""
        if isinstance(value, Lazy):
            is_broadcast = self._largest_use.get(slot, 0) > math.prod(value.shape)
            is_reused = self._uses.get(slot, 0) > 1 or is_broadcast
            is_dear = value.weight > _HEAVY or (value.weight > _LIGHT and is_reused)
            if is_dear or slot in self._must_store:
                value = self._store(value, self._kinds[slot].strides)
        self._values[slot] = value

    def _check_in_place(self, operation: Operation, number: int) -> None:
        """Raise CannotGenerate if an operation writes into an argument or into what another view reads later."""
        [slot, *_], target = operation.results, operation.arguments[0][0]
        root = self._roots.get(slot, slot)
        aliases = [alias for alias in self._values if alias != slot and self._roots.get(alias, alias) == root]
        is_read_later = any(self._last_use.get(alias, 0) > number for alias in aliases)
        value = self._values.get(slot)
        is_own = isinstance(value, Lazy) or (isinstance(value, Stored) and value.buffer.given is None)
        if target != slot or is_read_later or not is_own:
            raise CannotGenerate(f"{name_of(operation.function)} into a tensor that others show")

    def _view(self, operation: Operation) -> None:
        """Define a view's results: a stored source gets other strides, a lazy one other indices."""
        positional, keywords = operation.arguments
        source = self._operand(positional[0])
        if name_of(operation.function) in ("reshape", "_reshape_alias"):  # a view, or a copy where there can be none
            shape = self._kinds[operation.results[0]].shape
            operation = operation._replace(function=torch.ops.aten.view.default)
            positional, keywords = [positional[0], shape], {}
            if isinstance(source, Stored) and not _may_view(source, shape):
                source = self._store(source)
        strides = source.strides if isinstance(source, Stored) else contiguous_strides(source.shape)
        # torch finds the strides: tensors of the device `meta` have shapes and strides, but no elements.
        like = torch.empty_strided(source.shape, strides, device="meta")
        views = pytree.tree_leaves(operation.function(like, *positional[1:], **keywords))
        for slot, view in zip(operation.results, views, strict=True):
            geometry = tuple(view.shape), tuple(view.stride()), view.storage_offset()
            if isinstance(source, Stored):
                self._values[slot] = Stored(source.buffer, geometry[0], geometry[1], source.offset + geometry[2])
            elif geometry[0] == source.shape and geometry[1] == strides:
                self._values[slot] = source
            else:
                self._values[slot] = _view_of(source, *geometry)

    def _pointwise(self, name: str, positional: list[Any], keywords: Mapping[str, Any], slot: Slot) -> Lazy:
        """Return the value of a pointwise operation; `name` is that of its out-of-place variant."""
        kind = self._kinds[slot]
        if name in COMPARISONS:
            template, operands = COMPARISONS[name], take_operands(COMPARISONS[name], positional)
            dtype = common_type(operands, self._kinds)
        else:
            known = name != "copy"
            formula = formula_of(name, positional, dict(keywords), kind.dtype) if known else ("{0}", positional[1:2])
            (template, operands), dtype = formula, kind.dtype
        if name in _DIVISIONS and not dtype.is_floating_point:  # a division by zero ends the process
            divisor = self._operand(operands[1])
            if isinstance(divisor, Stored | Lazy) or not divisor:
                raise CannotGenerate(f"{name} of whole numbers by {'a tensor' if divisor else divisor}")
        return _formula(template, [self._operand(operand) for operand in operands], kind, dtype)

    def _cast(self, source: Any, slot: Slot) -> Lazy:
        return _formula("{0}", [source], self._kinds[slot], self._kinds[slot].dtype)

    # -- memory ------------------------------------------------------------------------------------------------------

    def _store(self, value: Value, strides: Sequence[int] | None = None) -> Stored:
        """Store a value in a new buffer, with these `strides` if they leave no gaps, else contiguously."""
        if strides is None or not _is_dense(value.shape, strides):
            strides = contiguous_strides(value.shape)
        target = Stored(Buffer(math.prod(value.shape), value.dtype), value.shape, tuple(strides))
        self._copy(value, target)
        return target

    def _copy(self, value: Any, to: Stored) -> None:
        """Add the loops that write a value, or a number, into memory."""
        if math.prod(to.shape):
            order = sorted(range(len(to.shape)), key=lambda axis: -to.strides[axis])
            self._loop(to, value, to.shape, lambda _, indices: linear(to.offset, to.strides, indices), order=order)

    def _loop(
        self,
        to: Stored,
        value: Any,
        shape: Sequence[int],
        place: Callable[[Body, list[Index]], Index],
        *,
        order: Sequence[int] | None = None,
        how: str = "store",
        reduced: Collection[int] = (),
        is_scattered: bool = False,
        scanned: int | None = None,
    ) -> None:
        """Add loops over a shape's axes, in this `order`, that write elements of a value or a number into a buffer.

        `place` returns where, from the index along each axis; all else as in `Loops`, but by the shape's axes.
        """
        order = [axis for axis in (order or range(len(shape))) if shape[axis] > 1]

        def along_all(indices: Sequence[Index]) -> list[Index]:
            along = dict(zip(order, indices, strict=True))
            return [along.get(axis, Index()) for axis in range(len(shape))]

        self.steps.append(
            Loops(
                axes=tuple(shape[axis] for axis in order),
                value=lambda body, indices: element(body, value, along_all(indices), to.dtype),
                dtype=to.dtype,
                buffer=to.buffer,
                place=lambda body, indices: place(body, along_all(indices)),
                how=how,
                reduced=frozenset(number for number, axis in enumerate(order) if axis in reduced),
                is_scattered=is_scattered,
                scanned=(0, 0) if scanned is None else (order.index(scanned), to.strides[scanned]),
            )
        )

    def _result(self, value: Any, number: int) -> Stored:
        """Return a result of the program: the value itself if it fills a buffer of its own, else a copy."""
        if (
            isinstance(value, Stored)
            and value.buffer.is_made
            and value.strides == contiguous_strides(value.shape)
            and value.buffer.numel == math.prod(value.shape)
        ):
            value.buffer.result = number
            return value
        if not isinstance(value, Stored | Lazy):
            raise CannotGenerate("a result that is a number")
        to = Stored.whole(Buffer(math.prod(value.shape), value.dtype, result=number), value.shape)
        self._copy(value, to)
        return to

    def _in_memory(self, leaf: Any) -> Stored:
        value = self._operand(leaf)
        return value if isinstance(value, Stored) else self._store(value)

    # -- handlers: operations that are neither views nor pointwise ---------------------------------------------------

    def clone(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Clone a tensor; elements are copied only if their order in memory changes."""
        [slot], source = operation.results, self._operand(positional[0])
        kind = self._kinds[slot]
        if isinstance(source, Stored) and source.strides != kind.strides:
            self._values[slot] = self._store(source, kind.strides)
        else:
            self._define(slot, self._cast(source, slot) if isinstance(source, Lazy) else source)

    def full(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Fill a tensor with a number."""
        kind = self._kinds[operation.results[0]]
        self._define(operation.results[0], _formula("{0}", [positional[1]], kind, kind.dtype))

    def where(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Choose between two operands, element by element."""
        if name_of(operation.function) == "masked_fill":
            source, mask, value = positional
            positional = [mask, value, source]
        kind = self._kinds[operation.results[0]]
        mask, if_true, if_false = (self._operand(leaf) for leaf in positional[:3])

        def load(body: Body, indices: Sequence[Index]) -> str:
            condition = element(body, mask, indices, torch.bool)
            taken, otherwise = (element(body, value, indices, kind.dtype) for value in (if_true, if_false))
            return body.hold(f"{condition} ? {taken} : {otherwise}", kind.dtype)

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 1 + _weight([mask, if_true, if_false])))

    def reduce(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Reduce along axes: sum, mean, largest, smallest, all or any."""
        slot, name = operation.results[0], name_of(operation.function)
        source = self._operand(positional[0])
        axes = positional[1] if len(positional) > 1 else None
        axes = axes if isinstance(axes, list) else [] if axes is None else [axes]
        if name in ("amax", "amin") and not source.dtype.is_floating_point:
            raise CannotGenerate("an extreme of whole numbers")
        if name in ("all", "any") and (self._kinds[slot].dtype != torch.bool or axes == [] != positional[1:]):
            raise CannotGenerate(f"{operation.function} of {source.dtype} along {axes}")
        reduced = _axes(axes, len(source.shape))
        total = self._reduce(source, reduced, "sum" if name == "mean" else name, self._kinds[slot])
        self._values[slot] = total
        if name == "mean":
            count = math.prod(source.shape[axis] for axis in reduced)
            self._define(slot, _formula(f"{{0}} / {{T}}({count})", [total], self._kinds[slot], total.dtype))

    def _reduce(self, source: Value, axes: Sequence[int], how: str, kind: Kind) -> Stored:
        """Add the loops of a reduction, and return its result; `how` as in `Loops`."""
        if not math.prod(source.shape):
            raise CannotGenerate("a sum of nothing")
        to = _new(kind)
        kept = [1 if axis in axes else size for axis, size in enumerate(source.shape)]
        strides = [0 if axis in axes else stride for axis, stride in enumerate(contiguous_strides(kept))]
        how = how if any(source.shape[axis] > 1 for axis in axes) else "store"
        self._loop(to, source, source.shape, lambda _, indices: linear(0, strides, indices), how=how, reduced=axes)
        return to

    def var_mean(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Compute the variance along axes, and the mean if it is asked for, in two passes."""
        source = self._operand(positional[0])
        variance, *mean_slots = operation.results
        if len(positional) > 2 and isinstance(positional[2], bool):  # the overload of dim, unbiased, keepdim
            axes, correction = positional[1], int(positional[2])
        else:
            axes, correction = positional[1] if len(positional) > 1 else None, keywords.get("correction", 1)
        reduced = _axes([] if axes is None else axes, len(source.shape))
        count = math.prod(source.shape[axis] for axis in reduced)
        kind = self._kinds[variance]
        total = self._reduce(source, reduced, "sum", kind)
        mean = self._store(_formula(f"{{0}} / {{T}}({count})", [total], kind, kind.dtype))
        self._values |= dict.fromkeys(mean_slots, mean)
        shape = tuple(1 if axis in reduced else size for axis, size in enumerate(source.shape))
        kept_mean = Stored.whole(mean.buffer, shape)
        source_kind = Kind(source.shape, contiguous_strides(source.shape), source.dtype)
        squares = _formula("({0} - {1}) * ({0} - {1})", [source, kept_mean], source_kind, source.dtype)
        total = self._reduce(squares, reduced, "sum", kind)
        self._define(
            variance,
            _formula(f"{{0}} / {{T}}({max(0, count - correction)})", [total], self._kinds[variance], kind.dtype),
        )

    def scan(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Compute the cumulative sum along an axis."""
        [slot], source = operation.results, self._operand(positional[0])
        kind = self._kinds[slot]
        axis = positional[1] % max(1, len(source.shape))
        if not source.shape or source.shape[axis] == 1:
            self._define(slot, self._cast(source, slot))
            return
        to = _new(kind)
        self._loop(
            to, source, source.shape, lambda _, indices: linear(0, to.strides, indices), how="scan", scanned=axis
        )
        self._values[slot] = to

    def flip(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Reverse the order of elements along axes."""
        source = self._operand(positional[0])
        axes = _axes(positional[1], len(source.shape)) if positional[1] else []
        if isinstance(source, Stored):
            offset = source.offset + sum((source.shape[axis] - 1) * source.strides[axis] for axis in axes)
            strides = [-stride if axis in axes else stride for axis, stride in enumerate(source.strides)]

            def load(body: Body, indices: Sequence[Index]) -> str:
                return body.load(source.buffer, linear(offset, strides, indices))
        else:

            def load(body: Body, indices: Sequence[Index]) -> str:
                reversed_indices = [
                    Index(source.shape[axis] - 1).plus(index, -1) if axis in axes else index
                    for axis, index in enumerate(indices)
                ]
                return source.load(body, reversed_indices)

        self._define(operation.results[0], Lazy(source.shape, source.dtype, load, source.weight))

    def embedding(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Read the rows of a table that an index names."""
        table, index = (self._operand(leaf) for leaf in positional[:2])
        kind = self._kinds[operation.results[0]]

        def load(body: Body, indices: Sequence[Index]) -> str:
            row = body.read_index(element(body, index, indices[:-1], torch.int64), table.shape[0])
            return table.load(body, [row, indices[-1]])

        # Just above _LIGHT: rows that are used several times are read from the table once.
        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, _LIGHT + 1))

    def embedding_gradient(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Sum the gradient's rows into the rows of the table that the index names."""
        gradient, index, rows, padding, by_frequency = positional
        if padding >= 0 or by_frequency:
            raise CannotGenerate("an embedding with a padding index or scaled by frequency")
        gradient, index = self._operand(gradient), self._operand(index)
        if not math.prod(gradient.shape):
            raise CannotGenerate("the gradient of an embedding of nothing")
        to = _new(self._kinds[operation.results[0]])

        def place(body: Body, indices: list[Index]) -> Index:
            *others, column = indices
            row = body.read_index(element(body, index, others, torch.int64), rows)
            return linear(0, to.strides, [row, column])

        summed = range(len(gradient.shape) - 1)
        self._loop(to, gradient, gradient.shape, place, how="sum", reduced=summed, is_scattered=True)
        self._values[operation.results[0]] = to

    def gather(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Read the elements that an index names along an axis."""
        source, index = self._operand(positional[0]), self._operand(positional[2])
        axis = positional[1] % max(1, len(source.shape))
        kind = self._kinds[operation.results[0]]

        def load(body: Body, indices: Sequence[Index]) -> str:
            at = [*indices]
            at[axis] = body.read_index(element(body, index, indices, torch.int64), source.shape[axis])
            return source.load(body, at)

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 2 + _weight([source, index])))

    def scatter_add(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Add numbers to the elements that an index names.

        With few in a row, each element picks its own. Many are summed one after another into zeros.
        """
        source, index, added = (self._operand(positional[number]) for number in (0, 2, 3))
        kind = self._kinds[operation.results[0]]
        axis = positional[1] % max(1, len(kind.shape))
        others = [number for number in range(len(kind.shape)) if number != axis]
        if index.shape[axis] > _SHORT_SCATTER or any(index.shape[other] != kind.shape[other] for other in others):
            to = _new(kind)

            def place(body: Body, indices: list[Index]) -> Index:
                at = [*indices]
                at[axis] = body.read_index(element(body, index, indices, torch.int64), kind.shape[axis])
                return linear(0, to.strides, at)

            self._loop(to, added, index.shape, place, how="sum", reduced=(axis,), is_scattered=True)
            self._define(operation.results[0], _formula("{0} + {1}", [source, to], kind, kind.dtype))
            return

        def load(body: Body, indices: Sequence[Index]) -> str:
            total = element(body, source, indices, kind.dtype)
            for term in range(index.shape[axis]):
                at = [*indices]
                at[axis] = Index(term)
                is_chosen = f"{index.load(body, at)} == {indices[axis].write()}"
                addend = element(body, added, at, kind.dtype)
                total = body.hold(f"{total} + ({is_chosen} ? {addend} : {TYPES[kind.dtype]}(0))", kind.dtype)
            return total

        weight = 2 + _weight([source, index, added])
        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, weight))

    def triangle(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Keep the elements on one side of a diagonal; the others become zero."""
        source, kind = self._operand(positional[0]), self._kinds[operation.results[0]]
        diagonal = positional[1] if len(positional) > 1 else 0
        sign = "<=" if name_of(operation.function) == "tril" else ">="

        def load(body: Body, indices: Sequence[Index]) -> str:
            is_kept = f"{indices[-1].write()} {sign} {indices[-2].write()} + {diagonal}"
            return body.hold(
                f"{is_kept} ? {element(body, source, indices, kind.dtype)} : {TYPES[kind.dtype]}(0)", kind.dtype
            )

        self._define(operation.results[0], Lazy(kind.shape, kind.dtype, load, 2 + source.weight))

    # -- parts of tensors --------------------------------------------------------------------------------------------

    def join(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Concatenate or stack tensors."""
        parts = [self._operand(part) for part in positional[0]]
        kind = self._kinds[operation.results[0]]
        to = _new(kind)
        axis, start = (positional[1] if len(positional) > 1 else 0) % max(1, len(kind.shape)), 0
        for part in parts:
            if name_of(operation.function) == "stack":
                shape, strides = ((*own[:axis], *own[axis + 1 :]) for own in (to.shape, to.strides))
                target = Stored(to.buffer, shape, strides, start * to.strides[axis])
                start += 1
            elif len(part.shape) != len(kind.shape):
                continue  # an empty tensor of one axis, which `cat` accepts beside all others
            else:
                target = _sliced(to, axis, start, start + part.shape[axis])
                start += part.shape[axis]
            self._copy(part, target)
        self._values[operation.results[0]] = to

    def pad(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Pad a tensor with a number; negative widths cut elements off."""
        source, widths = self._operand(positional[0]), positional[1]
        number = positional[2] if len(positional) > 2 else 0
        rank = len(source.shape)
        sides = [(0, 0)] * rank
        for pair in range(len(widths) // 2):
            sides[rank - 1 - pair] = widths[2 * pair], widths[2 * pair + 1]
        for axis, (before, after) in enumerate(sides):
            if before < 0 or after < 0:
                end = source.shape[axis] + min(0, after)
                source = _sliced(source, axis, max(0, -before), end)
        self._within(operation, source, [(max(0, before), 1) for before, _ in sides], number)

    def slice_gradient(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Write the gradient of a slice, or of a selected index, into zeros of the sliced tensor's shape."""
        source, name = self._operand(positional[0]), name_of(operation.function)
        sizes, axis = positional[1], positional[2] % len(positional[1])
        starts = [(0, 1)] * len(sizes)
        if name == "select_backward":
            index = positional[3] % sizes[axis]
            if isinstance(source, Stored):
                shape, strides = ((*own[:axis], 1, *own[axis:]) for own in (source.shape, source.strides))
                source = Stored(source.buffer, shape, strides, source.offset)
            else:
                like = torch.empty(source.shape, device="meta").unsqueeze(axis)
                source = _view_of(source, tuple(like.shape), tuple(like.stride()), 0)
            starts[axis] = index, 1
        else:
            start, step = positional[3], positional[5]
            start = 0 if start is None else start
            starts[axis] = max(0, min(sizes[axis], start + sizes[axis] if start < 0 else start)), step
        self._within(operation, source, starts, 0)

    def _within(self, operation: Operation, source: Value, starts: Sequence[tuple[int, int]], number: float) -> None:
        """Write a tensor into a larger one and a number into the rest; `starts`: start and step by axis."""
        kind = self._kinds[operation.results[0]]
        if [*source.shape] == [*kind.shape]:
            self._values[operation.results[0]] = source
            return
        inside = to = _new(kind)
        for axis, (start, step) in enumerate(starts):
            count, size = source.shape[axis], kind.shape[axis]
            self._copy(number, _sliced(inside, axis, 0, start))
            for phase in range(step):  # elements between those of the source, and after them
                first = start + phase + (count * step if not phase else 0)
                self._copy(number, _sliced(inside, axis, first, size, step))
            inside = _sliced(inside, axis, start, start + (count - 1) * step + 1, step)
        self._copy(source, inside)
        self._values[operation.results[0]] = to

    # -- products ----------------------------------------------------------------------------------------------------

    def product(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Multiply matrices or batches of them; `addmm` and `baddbmm` also add a tensor."""
        name, [slot] = name_of(operation.function), operation.results
        kind = self._kinds[slot]
        addend: Value | None = None
        if name in ("addmm", "baddbmm"):
            addend, *positional = [self._operand(positional[0]), *positional[1:]]
            if any(keywords.get(factor, 1) != 1 for factor in ("alpha", "beta")):
                raise CannotGenerate("a product with factors")
        if not kind.dtype.is_floating_point:
            raise CannotGenerate("a product of whole numbers")
        left, right = (_batched(self._in_memory(leaf)) for leaf in positional[:2])
        to = _new(kind)
        if not left.shape[2]:
            raise CannotGenerate("a product of nothing")
        is_bias = isinstance(addend, Stored) and addend.shape == kind.shape[-1:] and addend.strides == (1,)
        if kind.numel:
            batch = _batched(to)
            sizes = [*left.shape, right.shape[2], *left.strides, *right.strides, *batch.strides[:2]]
            bias = addend if isinstance(addend, Stored) and is_bias else None
            self.steps.append(Call("product", [left, right, bias], [batch], sizes))
        self._values[slot] = to
        if addend is not None and not is_bias:
            self._define(slot, _formula("{0} + {1}", [to, addend], kind, kind.dtype))

    # -- splines -----------------------------------------------------------------------------------------------------

    def spline(self, operation: Operation, positional: list[Any], keywords: Mapping[str, Any]) -> None:
        """Call the interpolation between learned knots, or its gradient."""
        *values, knots, low, scale = (self._contiguous(leaf) for leaf in positional)
        written = [_new(self._kinds[slot]) for slot in operation.results]
        self._values |= dict(zip(operation.results, written, strict=True))
        sizes = [math.prod(values[0].shape), math.prod(knots.shape)]
        if sizes[0]:
            name = name_of(operation.function).removeprefix("graft::")
            self.steps.append(Call(name, [*values, knots, low, scale], written, sizes))

    def _contiguous(self, leaf: Any) -> Stored:
        """Return an operand in memory, its elements contiguous in the order of its axes."""
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
"""Name of an operation -> the method that lowers it."""


def _formula(template: str, operands: Sequence[Any], kind: Kind, dtype: torch.dtype) -> Lazy:
    """Return the value of a formula of the operands' elements, computed in `dtype`."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        texts = [element(body, item, indices, dtype) for item in operands]
        expression = template.format(*(item if item.isidentifier() else f"({item})" for item in texts), T=TYPES[dtype])
        return texts[0] if template == "{0}" and dtype == kind.dtype else body.hold(expression, kind.dtype)

    return Lazy(kind.shape, kind.dtype, load, (template != "{0}") * cost_of(template) + _weight(operands))


def _new(kind: Kind) -> Stored:
    """Return memory of its own for a tensor, its elements in the order of its axes."""
    return Stored.whole(Buffer(kind.numel, kind.dtype), kind.shape)


def _may_view(source: Stored, shape: tuple[int, ...]) -> bool:
    """Return whether elements in memory can be viewed with this shape without a copy."""
    try:
        torch.empty_strided(source.shape, source.strides, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def _weight(operands: Sequence[Any]) -> int:
    """Return the cost of an element of every operand; numbers cost nothing."""
    return sum(operand.weight for operand in operands if isinstance(operand, Stored | Lazy))


def _view_of(source: Lazy, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Lazy:
    """Return a view of a value; strides and offset count its elements in the order of its axes."""

    def load(body: Body, indices: Sequence[Index]) -> str:
        return source.load(body, unravel(linear(offset, strides, indices), source.shape))

    return Lazy(shape, source.dtype, load, source.weight)


def _sliced(value: Any, axis: int, start: int, end: int, step: int = 1) -> Any:
    """Return the elements of a value from `start` to below `end` along an axis, every `step`-th."""
    shape = (*value.shape[:axis], len(range(start, end, step)), *value.shape[axis + 1 :])
    if isinstance(value, Stored):
        strides = [stride * step if at == axis else stride for at, stride in enumerate(value.strides)]
        return Stored(value.buffer, shape, tuple(strides), value.offset + start * value.strides[axis])

    def load(body: Body, indices: Sequence[Index]) -> str:
        shifted = [Index(start).plus(index, step) if at == axis else index for at, index in enumerate(indices)]
        return value.load(body, shifted)

    return Lazy(shape, value.dtype, load, value.weight)


def _batched(value: Stored) -> Stored:
    """Return a matrix as a batch of one; a batch stays as it is."""
    if len(value.shape) == 3:
        return value
    return Stored(value.buffer, (1, *value.shape), (0, *value.strides), value.offset)


def _axes(axes: Sequence[int] | int, rank: int) -> list[int]:
    """Return axes from the front, in ascending order; without any, all axes."""
    listed = [axes] if isinstance(axes, int) else [*axes]
    return sorted(axis % max(1, rank) for axis in listed) if listed else [*range(rank)]


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor's elements fill memory without gaps, in any order of its axes."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _out_of_place(name: str) -> str:
    """Return the name of an operation's variant that makes a new tensor: `add` for `add_`."""
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name
