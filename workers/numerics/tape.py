"""A list of a function's tensor operations, to be run again on tensors of the same shapes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from spaces.plugins.bundles import PREFIX
from workers.numerics.codegen.values import Kind
from workers.numerics.fusion import fuse, fuses_on
from workers.numerics.simplifying import Operation, Slot, join_gradients, replace, simplify, slots_in

_FILLED: dict[Any, float] = {
    torch.ops.aten.ones_like.default: 1,
    torch.ops.aten.zeros_like.default: 0,
    torch.ops.aten.new_ones.default: 1,
    torch.ops.aten.new_zeros.default: 0,
}
"""Operation that takes only shape, dtype and device from a tensor -> what fills its result."""


class CannotRecord(Exception):  # noqa: N818 - the function may still be run
    """An operation cannot be recorded; the text names it."""


class Tape(TorchDispatchMode):
    """While entered, lists this thread's tensor operations, as they are below vmap and autograd.

    Tensors that are given or made are numbered, not kept; constants are kept.

        tape = Tape(leaves)
        with tape:
            results = function(*leaves)
        again = tape.replayer(tape.slots(results))   # again(*other_leaves)
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        """Make a tape for `leaves`, different objects, which a replay replaces.

        The first axis of the first leaf has the lanes, if it has an axis.
        """
        super().__init__()
        self.leaves = [Slot(number) for number in range(len(leaves))]
        self._slots = WeakTensorKeyDictionary(dict(zip(leaves, self.leaves, strict=True)))
        self._next = len(leaves)
        self.kinds = {slot: Kind.of(leaf) for slot, leaf in zip(self.leaves, leaves, strict=True)}
        self.fixed: set[Slot] = set()
        """Tensors made of constants alone, whose numbers are the same at each replay."""
        self.origins: dict[str, str] = {}
        """Name of an operation -> file and line of the outside plug-in that called it last."""
        self._last_name = ""
        self._device = leaves[0].device if leaves else torch.device("cpu")
        self._fuses = bool(leaves) and leaves[0].dim() > 0 and fuses_on(self._device)
        self.operations: list[Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            # A number of the function becomes a tensor that may be written into: copy it each time.
            func = torch.ops.aten.lift_fresh_copy.default
        self._note_origin(func)
        arguments = self.slots((args, kwargs or {}))
        returned = func(*args, **(kwargs or {}))
        results = pytree.tree_leaves(returned)
        if not any(isinstance(leaf, Tensor) for leaf in (*pytree.tree_leaves((args, kwargs)), *results)):
            return returned  # of dtypes, say: it is the same at each replay
        # Without leaves, as in tests, the operations read and write outer tensors: none is fixed.
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        is_fixed = bool(self.leaves) and slots_in(arguments) <= self.fixed and not is_random
        if is_fixed and results and not any(isinstance(result, Tensor) for result in results):
            return returned  # a number of a constant
        for result in results:
            # Python's decisions by a number would hold for all later replays.
            if result is not None and not isinstance(result, Tensor):
                name = func.overloadpacket.__name__
                origin = self.origins.get(name) or self.origins.get(name.removesuffix("_backward"))
                title = f"{origin}: {func}" if origin else func
                raise CannotRecord(f"{title} takes a number out of a tensor, which a recording cannot")
            if result is not None and result not in self._slots:  # else it was written in place
                self._slots[result] = Slot(self._next)
                self.kinds[self._slots[result]] = Kind.of(result)
                self._next += 1
                if is_fixed:
                    self.fixed.add(self._slots[result])
            elif result is not None and not is_fixed:  # written in place: a fixed tensor may share its memory
                self.fixed.clear()
        if func in _FILLED or func is torch.ops.aten.new_full.default:
            number = _FILLED[func] if func in _FILLED else args[2]
            options = {"dtype": returned.dtype, "device": returned.device}
            func, arguments = torch.ops.aten.full.default, [[[*returned.shape], number], options]
        self.operations.append(Operation(func, arguments, self.slots(results)))
        return returned

    def _note_origin(self, func: Any) -> None:
        """Remember the line of an outside plug-in that calls this operation, if one does."""
        # A gradient is computed without a frame of the plug-in, on a GPU in a thread of autograd's.
        frame = sys._getframe()  # pyright: ignore[reportPrivateUsage]
        while frame and not str(frame.f_globals.get("__name__", "")).startswith(PREFIX):
            frame = frame.f_back
        if frame:
            self._last_name = func.overloadpacket.__name__
            self.origins[self._last_name] = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def describe_last(self) -> str:
        """Name the last line of an outside plug-in that called an operation, and the operation."""
        return f"{self.origins[self._last_name]}, in the gradient of what follows from {self._last_name}"

    def slots(self, tree: Any) -> Any:
        """Return the tree with slots for tensors; constants, neither given nor made, stay."""
        return replace(Tensor, lambda tensor: self._slots.get(tensor, tensor), tree)

    def replayer(self, results: list[Any]) -> Callable[..., list[Tensor]]:
        """Return the function of the leaves that replays the operations, for these results' slots."""
        operations = simplify(self.operations, results)
        if self._fuses:
            lanes = self.kinds[self.leaves[0]].shape[0]
            operations = fuse(operations, results, self.kinds, self._device, lanes)
        elif self.leaves:
            operations = join_gradients(operations, results)
        operations = [_Numbered(call).as_operation() if _is_refused(call) else call for call in operations]
        freed: list[list[Slot]] = []  # slots that no later operation needs, last operation first
        needed = slots_in(results)
        for operation in reversed(operations):
            used = slots_in((operation.arguments, operation.results))
            freed.append([*(used - needed)])
            needed |= used
        steps = list(zip(operations, reversed(freed), strict=True))

        def replay(*leaves: Tensor) -> list[Tensor]:
            values: dict[Any, Any] = dict(zip(self.leaves, leaves, strict=True))
            for operation, unneeded in steps:
                arguments, keywords = replace(Slot, values.__getitem__, operation.arguments)
                returned = pytree.tree_leaves(operation.function(*arguments, **keywords))
                values.update(zip(operation.results, returned, strict=True))
                for slot in unneeded:
                    del values[slot]
            return replace(Slot, values.__getitem__, results)

        return replay


# -- operations that TorchScript's tracer refuses ---------------------------------------------------


class _Numbered:
    """An operation and its arguments without tensors, which the interpreter calls by a number."""

    def __init__(self, operation: Operation) -> None:
        self._function, self._arguments, self._results = operation
        leaves = pytree.tree_leaves(self._arguments)
        self._slots = [*dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, Slot))]
        self.number = next(_NUMBERS)
        _NUMBERED[self.number] = self

    def __call__(self, *given: Tensor) -> list[Tensor]:
        return torch.ops.graft.numbered.default(self.number, [*given])

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run it on tensors in place of its slots; leave out results that are None."""
        values = dict(zip(self._slots, given, strict=True))
        positional, keywords = replace(Slot, values.__getitem__, self._arguments)
        returned = pytree.tree_leaves(self._function(*positional, **keywords))
        return [leaf for leaf in returned if isinstance(leaf, Tensor)]

    def as_operation(self) -> Operation:
        """Return the operation of a recording that calls this one, and keeps it."""
        results = [result for result in self._results if result is not None]
        return Operation(self, [[*self._slots], {}], results)


def _is_refused(operation: Operation) -> bool:
    """Return whether an operation takes lists of booleans, which TorchScript's tracer refuses."""
    schema: Any = getattr(operation.function, "_schema", None)
    if schema is None or schema.is_mutable:
        return False
    return any(str(argument.type) == "List[bool]" for argument in schema.arguments)


_NUMBERED: WeakValueDictionary[int, _Numbered] = WeakValueDictionary()
"""The numbered operations of recordings that are kept."""
_NUMBERS = itertools.count()
_LIBRARY = torch.library.Library("graft", "FRAGMENT")
_LIBRARY.define("numbered(int number, Tensor[] given) -> Tensor[]")
_LIBRARY.impl("numbered", lambda number, given: _NUMBERED[number].run(given), "CompositeExplicitAutograd")
