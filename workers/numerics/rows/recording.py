"""The recorder of a function of a few small tensors, with its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from workers.numerics.rows.nodes import NotOfRows
from workers.numerics.rows.reading import is_known, operation_name
from workers.numerics.simplifying import Operation, Slot, replace, slots_in


class Recorder(TorchDispatchMode):
    """While entered, lists the tensor operations of this thread, also those of gradients.

    Raises NotOfRows where a number is taken out of a tensor, which would become a constant.

    Unlike `workers.numerics.tape` it records torch.autograd's gradients, which come as other
    tensors of the same memory. So tensors are known by addresses, none of which is reused.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._tensors: list[Tensor] = []
        self._slots: dict[Any, Slot] = {}
        self._inside: list[Any] = []
        """Operations that are being recorded as simpler ones."""
        self.leaves = {id(leaf): self._note(leaf) for leaf in leaves}
        """Slots of the given tensors by their `id`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func not in self._inside and _is_composed(func, kwargs or {}):
            self._inside.append(func)
            with self:  # torch's own rule, in simpler operations
                returned = decomposition_table[func](*args, **(kwargs or {}))
            self._inside.pop()
            return returned
        given = [list(args), dict(kwargs or {})]
        arguments = replace(Tensor, lambda tensor: self._slots.get(_key_of(tensor), tensor), given)
        returned = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in pytree.tree_leaves(returned) if leaf is not None]
        results = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if len(results) < len(leaves) and slots_in(arguments):
            raise NotOfRows("it takes a number out of a tensor")
        if results:
            self.operations.append(Operation(func, arguments, [self._note(result) for result in results]))
        return returned

    def slot(self, tensor: Tensor) -> Slot | Tensor:
        """Return a tensor's slot, or the tensor if it is a constant: neither given nor made."""
        return self._slots.get(_key_of(tensor), tensor)

    def _note(self, tensor: Tensor) -> Slot:
        slot = self._slots[_key_of(tensor)] = Slot(len(self._tensors))
        self._tensors.append(tensor)
        return slot


def _is_composed(function: Any, keywords: Mapping[str, Any]) -> bool:
    """Return whether an elementwise operation is recorded by its decomposition: it has no rule."""
    name = operation_name(function)
    if function not in decomposition_table or is_known(name, keywords):
        return False
    untagged = name in ("hardswish", "glu", "_prelu_kernel") or name.endswith(("_backward", "_forward"))
    return untagged or torch.Tag.pointwise in function.tags


def _key_of(tensor: Tensor) -> Any:
    return tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype
