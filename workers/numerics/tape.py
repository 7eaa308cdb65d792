"""A list of the tensor operations that a function makes, to be run again on other tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from workers.numerics.fusion import fuse, fuses_on
from workers.numerics.fusion.values import Kind
from workers.numerics.simplifying import Operation, Slot, replace, simplify, slots_in

_FILLED: dict[Any, float] = {
    torch.ops.aten.ones_like.default: 1,
    torch.ops.aten.zeros_like.default: 0,
    torch.ops.aten.new_ones.default: 1,
    torch.ops.aten.new_zeros.default: 0,
}
"""What takes nothing but shape and kind from a tensor -> the number that it fills another with."""


class Tape(TorchDispatchMode):
    """While it is entered, lists the tensor operations of this thread: those that are left below vmap and autograd.

    `torch.fx` does so with more care, for tensors of unknown shapes, and takes ten times as long. Tensors are numbered
    and not kept: to record takes no more memory than to run.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        """`leaves`, tensors that are not the same object, are what a replay replaces."""
        super().__init__()
        self._leaves = [Slot(number) for number in range(len(leaves))]
        self._slots = WeakTensorKeyDictionary(dict(zip(leaves, self._leaves, strict=True)))
        self._next = len(leaves)
        self._kinds = {slot: Kind.of(leaf) for slot, leaf in zip(self._leaves, leaves, strict=True)}
        self._fuses = bool(leaves) and leaves[0].dim() > 0 and fuses_on(leaves[0].device)
        self._operations: list[Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would import its compiler to keep it out of what is recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            # A number written into the function becomes a tensor, which may be written into: a copy now, and later.
            func = torch.ops.aten.lift_fresh_copy.default
        arguments = self.slots((args, kwargs or {}))
        returned = func(*args, **(kwargs or {}))
        results = pytree.tree_leaves(returned)
        if not any(isinstance(leaf, Tensor) for leaf in (*pytree.tree_leaves((args, kwargs)), *results)):
            return returned  # of dtypes, say: it is the same at each replay
        for result in results:
            # What a number decides in Python would be decided for all later replays.
            if result is not None and not isinstance(result, Tensor):
                raise TypeError(f"{func} takes a number out of a tensor, which a recording cannot")
            if result is not None and result not in self._slots:  # an operation in place returns what it was given
                self._slots[result] = Slot(self._next)
                self._kinds[self._slots[result]] = Kind.of(result)
                self._next += 1
        if func in _FILLED or func is torch.ops.aten.new_full.default:
            number = _FILLED[func] if func in _FILLED else args[2]
            kind = {"dtype": returned.dtype, "device": returned.device}
            func, arguments = torch.ops.aten.full.default, [[[*returned.shape], number], kind]
        self._operations.append(Operation(func, arguments, self.slots(results)))
        return returned

    def slots(self, tree: Any) -> Any:
        """The tree with slots in place of tensors; one that was neither given nor made is a constant and stays."""
        return replace(Tensor, lambda tensor: self._slots.get(tensor, tensor), tree)

    def replayer(self, results: list[Any]) -> Callable[..., list[Tensor]]:
        """The function of the leaves that runs the operations again and returns the tensors of these slots."""
        operations = simplify(self._operations, results)
        if self._fuses:
            operations = fuse(operations, results, self._kinds, lanes=self._kinds[self._leaves[0]].shape[0])
        freed: list[list[Slot]] = []  # after each operation what no later one needs, from the last to the first
        needed = slots_in(results)
        for operation in reversed(operations):
            used = slots_in((operation.arguments, operation.results))
            freed.append([*(used - needed)])
            needed |= used
        steps = list(zip(operations, reversed(freed), strict=True))

        def replay(*leaves: Tensor) -> list[Tensor]:
            values: dict[Any, Any] = dict(zip(self._leaves, leaves, strict=True))
            for operation, unneeded in steps:
                arguments, keywords = replace(Slot, values.__getitem__, operation.arguments)
                returned = pytree.tree_leaves(operation.function(*arguments, **keywords))
                values.update(zip(operation.results, returned, strict=True))
                for slot in unneeded:
                    del values[slot]
            return replace(Slot, values.__getitem__, results)

        return replay
