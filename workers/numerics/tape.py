"""A list of the tensor operations that a function makes, to be run again on other tensors of the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor that was given to the function or made by it."""

    number: int


class _Operation(NamedTuple):
    """A call of a tensor operation, with slots in place of tensors; a tensor that stays is a constant."""

    function: Callable[..., Any]
    arguments: list[Any]
    """The positional ones, and the keywords."""
    results: list[Any]


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
        self._operations: list[_Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would import its compiler to keep it out of what is recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
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
                self._next += 1
        # A number written into the function becomes a tensor that is copied at each replay, which may write into it.
        again = torch.ops.aten.lift_fresh_copy.default if func is torch.ops.aten.lift_fresh.default else func
        self._operations.append(_Operation(again, arguments, self.slots(results)))
        return returned

    def slots(self, tree: Any) -> Any:
        """The tree with slots in place of tensors; one that was neither given nor made is a constant and stays."""
        return _replace(Tensor, lambda tensor: self._slots.get(tensor, tensor), tree)

    def replayer(self, results: list[Any]) -> Callable[..., list[Tensor]]:
        """The function of the leaves that runs the operations again and returns the tensors of these slots."""
        freed: list[list[Slot]] = []  # after each operation what no later one needs, from the last to the first
        needed = _slots_in(results)
        for operation in reversed(self._operations):
            used = _slots_in((operation.arguments, operation.results))
            freed.append([*(used - needed)])
            needed |= used
        steps = list(zip(self._operations, reversed(freed), strict=True))

        def replay(*leaves: Tensor) -> list[Tensor]:
            values: dict[Any, Any] = dict(zip(self._leaves, leaves, strict=True))
            for operation, unneeded in steps:
                arguments, keywords = _replace(Slot, values.__getitem__, operation.arguments)
                returned = pytree.tree_leaves(operation.function(*arguments, **keywords))
                values.update(zip(operation.results, returned, strict=True))
                for slot in unneeded:
                    del values[slot]
            return _replace(Slot, values.__getitem__, results)

        return replay


def _replace(kind: type, new: Callable[[Any], Any], tree: Any) -> Any:
    """`tree_map_only` for the arguments of an operation, which are many and simple."""
    if isinstance(tree, kind):
        return new(tree)
    if isinstance(tree, (list, tuple)):
        return [_replace(kind, new, leaf) for leaf in tree]
    if isinstance(tree, dict):
        return {name: _replace(kind, new, leaf) for name, leaf in tree.items()}
    return tree


def _slots_in(tree: Any) -> set[Slot]:
    return {leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Slot)}
