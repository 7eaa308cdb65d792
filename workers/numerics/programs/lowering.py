"""Lowering: one lane's recorded tensor operations become loops over elements and library calls.

A value is `Lazy`, an expression that each use computes, or `Stored` in torch's order of elements:
sums, results, operands of products and splines, and expensive expressions used several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from workers.numerics.codegen.formulas import COMPARISONS, common_type, formula_of, take_operands
from workers.numerics.codegen.values import TYPES, CannotGenerate, contiguous_strides
from workers.numerics.programs.indices import Index, linear
from workers.numerics.programs.recording import Recording, name_of
from workers.numerics.programs.values import Body, Buffer, Call, Lazy, Loops, Stored, Value, element, formula, view_of
from workers.numerics.simplifying import Operation, Slot, slots_in

LIGHT = 4
"""The largest weight (`Lazy.weight`) of a value that is computed again for each use."""
_HEAVY = 40
"""Values above this weight are always stored, or the generated text could grow without bound."""
_DIVISIONS = ("remainder", "floor_divide", "div")
VIEWS = (
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach"),
    *("expand", "transpose", "permute", "t", "slice", "select", "split", "split_with_sizes", "unbind"),
    *("lift", "unfold", "transpose_", "t_", "squeeze_", "unsqueeze_", "diagonal", "unsafe_split"),
)
"""Operations that show the elements of a tensor under other axes."""
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
SPLINES = ("graft::spline", "graft::spline_gradient")
_CALLS = (*PRODUCTS, *SPLINES)
"""Operations that become calls; their operands have to be in memory."""
_KEYWORDS = (
    *("dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit"),
    *("sparse_grad", "alpha", "beta", "rounding_mode", "approximate", "correction", "min", "max"),
    *("nan", "posinf", "neginf"),
)
"""Keywords that lowering heeds or that change no number; any other raises CannotGenerate."""


Rules = Mapping[str, Callable[..., Value | tuple[Value, ...]]]
"""Name of an operation -> its rule (`workers.numerics.programs.rules`)."""


class Lowering:
    """A recording's loops and calls, and the memory of its results; raises CannotGenerate."""

    def __init__(self, recording: Recording, rules: Rules) -> None:
        self._rules = rules
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

    # -- uses --------------------------------------------------------------------------------------

    def _count_uses(self, recording: Recording) -> None:
        """Note how slots are used; a use of a view is one of its root, the tensor that it shows."""
        self._roots: dict[Slot, Slot] = {}
        """Slot of a view -> slot of the tensor that it shows."""
        roots = self._roots
        self._uses: dict[Slot, int] = {}
        """Slot -> number of operations that read it or its views; making a view does not count."""
        self._largest_use: dict[Slot, int] = {}
        """Slot -> elements of the largest tensor that an operation computes from it."""
        self._must_store: set[Slot] = set()
        self._last_use = dict.fromkeys(slots_in(recording.results), len(recording.operations))
        """Slot -> number of the last operation that needs it; results are needed after all."""
        for number, operation in enumerate(recording.operations):
            for slot in slots_in(operation.arguments):
                self._last_use[slot] = max(number, self._last_use.get(slot, 0))
            name = name_of(operation.function)
            sources = {roots.get(slot, slot) for slot in slots_in(operation.arguments)}
            if name in VIEWS or name == "to":
                views = [slot for slot in operation.results if slot not in sources]
                roots |= {slot: root for slot in views for root in sources}
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

    # -- operations --------------------------------------------------------------------------------

    def _lower(self, operation: Operation, number: int) -> None:
        """Define the results of an operation; `number` is its position in the recording."""
        name = name_of(operation.function)
        positional, keywords = operation.arguments
        kinds = [self._kinds[slot] for slot in operation.results if slot in self._kinds]
        if any(kind.dtype not in TYPES for kind in kinds):
            raise CannotGenerate(f"{name} of {self._kinds[operation.results[0]].dtype}")
        if unknown := sorted(keywords.keys() - _KEYWORDS):
            raise CannotGenerate(f"{name} with {unknown[0]}")
        if any(isinstance(item, torch.dtype) for item in positional):  # `view` as another type
            raise CannotGenerate(f"{operation.function}")
        if name in VIEWS:
            self._view(operation)
        elif name == "to":
            [slot], source, kind = operation.results, self._operand(positional[0]), kinds[0]
            if source.dtype == kind.dtype:
                self._values[slot] = source
            else:
                self._define(slot, formula("{0}", [source], kind, kind.dtype))
        elif not slots_in(operation.arguments) and name != "full":
            constants = pytree.tree_leaves(operation.function(*positional, **keywords))
            self._values |= dict(zip(operation.results, map(self._operand, constants), strict=True))
        elif name in self._rules:
            operands = [self._operand(leaf) for leaf in positional]
            made = self._rules[name](self, self._kinds[operation.results[0]], *operands, **keywords)
            made = made if isinstance(made, tuple) else (made,)
            for slot, value in zip(operation.results, made, strict=False):
                is_shown = isinstance(value, Lazy) and value.is_view
                if is_shown or any(value is operand for operand in operands):
                    self._values[slot] = value
                else:
                    self._define(slot, value)
        else:
            base = out_of_place(name)
            if base != name:
                self._check_in_place(operation, number)
            [slot, *_] = operation.results
            self._define(slot, self._pointwise(base, positional, keywords, slot))

    def _operand(self, leaf: Any) -> Any:
        """Return the value of a slot or constant tensor, also in lists, or the number itself."""
        if isinstance(leaf, list):
            return [self._operand(part) for part in leaf]
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
        """Note the value of a slot; store it if that costs less than computing it for each use."""
        if isinstance(value, Lazy):
            is_broadcast = self._largest_use.get(slot, 0) > math.prod(value.shape)
            is_reused = self._uses.get(slot, 0) > 1 or is_broadcast
            is_dear = value.weight > _HEAVY or (value.weight > LIGHT and is_reused)
            if is_dear or slot in self._must_store:
                value = self.store(value, self._kinds[slot].strides)
        self._values[slot] = value

    def _check_in_place(self, operation: Operation, number: int) -> None:
        """Raise CannotGenerate if a write hits an argument, or what another view reads later."""
        [slot, *_], target = operation.results, operation.arguments[0][0]
        root = self._roots.get(slot, slot)
        alike = [other for other in self._values if self._roots.get(other, other) == root]
        is_read_later = any(self._last_use.get(other, 0) > number for other in alike if other != slot)
        value = self._values.get(slot)
        is_own = isinstance(value, Lazy) or (isinstance(value, Stored) and value.buffer.given is None)
        if target != slot or is_read_later or not is_own:
            raise CannotGenerate(f"{name_of(operation.function)} into a tensor that others show")

    def _view(self, operation: Operation) -> None:
        """Define a view's results: a stored source gets other strides, a lazy one other indices."""
        positional, keywords = operation.arguments
        source = self._operand(positional[0])
        if name_of(operation.function) in ("reshape", "_reshape_alias"):
            shape = self._kinds[operation.results[0]].shape
            operation = operation._replace(function=torch.ops.aten.view.default)
            positional, keywords = [positional[0], shape], {}
            if isinstance(source, Stored) and not _may_view(source, shape):
                source = self.store(source)
        strides = source.strides if isinstance(source, Stored) else contiguous_strides(source.shape)
        # torch finds the strides: tensors of the device `meta` have strides, but no elements.
        like = torch.empty_strided(source.shape, strides, device="meta")
        views = pytree.tree_leaves(operation.function(like, *positional[1:], **keywords))
        for slot, view in zip(operation.results, views, strict=True):
            shape, view_strides, offset = tuple(view.shape), tuple(view.stride()), view.storage_offset()
            if isinstance(source, Stored):
                self._values[slot] = Stored(source.buffer, shape, view_strides, source.offset + offset)
            elif (shape, view_strides) == (source.shape, strides):
                self._values[slot] = source
            else:
                self._values[slot] = view_of(source, shape, view_strides, offset)

    def _pointwise(self, name: str, positional: list[Any], keywords: Mapping[str, Any], slot: Slot) -> Lazy:
        """Return the value of a pointwise operation; `name` is its out-of-place variant's."""
        kind = self._kinds[slot]
        template, operands, dtype = "{0}", positional[1:2], kind.dtype
        if name in COMPARISONS:
            template, operands = COMPARISONS[name], take_operands(COMPARISONS[name], positional)
            dtype = common_type(operands, self._kinds)
        elif name != "copy":
            template, operands = formula_of(name, positional, dict(keywords), dtype)
        if name in _DIVISIONS and not dtype.is_floating_point:  # else 1 / 0 ends the process
            divisor = self._operand(operands[1])
            if isinstance(divisor, Stored | Lazy) or not divisor:
                raise CannotGenerate(f"{name} of whole numbers by {'a tensor' if divisor else divisor}")
        return formula(template, [self._operand(operand) for operand in operands], kind, dtype)

    # -- memory ------------------------------------------------------------------------------------

    def store(self, value: Value, strides: Sequence[int] | None = None) -> Stored:
        """Store a value in a new buffer, by `strides` if they leave no gaps, else contiguously."""
        if strides is None or not _is_dense(value.shape, strides):
            strides = contiguous_strides(value.shape)
        target = Stored(Buffer(math.prod(value.shape), value.dtype), value.shape, tuple(strides))
        self.copy(value, target)
        return target

    def copy(self, value: Any, to: Stored) -> None:
        """Add the loops that write a value, or a number, into memory."""
        if math.prod(to.shape):
            order = sorted(range(len(to.shape)), key=lambda axis: -to.strides[axis])
            self.loop(to, value, to.shape, lambda _, at: linear(to.offset, to.strides, at), order=order)

    def loop(
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
        """Add loops over a shape's axes, in this `order`, that write a value into a buffer.

        `place` turns an index along each axis into the buffer's; the rest as in `Loops`, by axis.
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
        """Return a program's result: the value if it fills its own buffer, else a copy."""
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
        self.copy(value, to)
        return to

    def in_memory(self, value: Value) -> Stored:
        """Return the value, stored if it is lazy."""
        return value if isinstance(value, Stored) else self.store(value)


def _may_view(source: Stored, shape: tuple[int, ...]) -> bool:
    """Return whether elements in memory can be viewed with this shape without a copy."""
    try:
        torch.empty_strided(source.shape, source.strides, device="meta").view(shape)
    except RuntimeError:
        return False
    return True


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor's elements fill memory without gaps, in any order of its axes."""
    expected = 1
    steps = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1]
    for stride, size in sorted(steps):
        if stride != expected:
            return False
        expected *= size
    return True


def out_of_place(name: str) -> str:
    """Return the name of an operation's out-of-place variant: `add` for `add_`."""
    return name[:-1] if name.endswith("_") and not name.startswith("_") else name
