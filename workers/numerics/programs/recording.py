"""What one lane computes, as a list of tensor operations that programs know, where they know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from workers.numerics.fusion.values import Kind
from workers.numerics.simplifying import Operation, Slot, join_gradients, simplify
from workers.numerics.tape import Tape


class Recording(NamedTuple):
    """The operations of one lane."""

    operations: list[Operation]
    kinds: Mapping[Slot, Kind]
    given: list[Slot]
    results: list[Any]
    """Slots, and constants."""


def record(function: Callable[..., Any], leaves: Sequence[Tensor], knows: Callable[[str], bool]) -> Recording:
    """Record a function of tensors that returns nested tensors; raises CannotRecord.

    An operation whose name is not known is recorded as those that torch itself makes of it, where torch can.
    """
    given = [leaf.detach() for leaf in leaves]
    tape = _SimplerTape(given, knows)
    # Attention by products and a softmax: torch's own kernel for it is none that a program has.
    with sdpa_kernel(SDPBackend.MATH), tape:
        results = tape.slots(pytree.tree_leaves(function(*given)))
    operations = join_gradients(simplify(tape.operations, results), results)
    return Recording(operations, tape.kinds, tape.leaves, results)


class _SimplerTape(Tape):
    def __init__(self, leaves: Sequence[Tensor], knows: Callable[[str], bool]) -> None:
        super().__init__(leaves)
        self._knows = knows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if not self._knows(func.overloadpacket.__name__):
            from torch._decomp import decomposition_table  # 800 modules, which taking a gradient has loaded by now

            with self:
                if simpler := decomposition_table.get(func):
                    return simpler(*args, **(kwargs or {}))
                if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):  # pyright: ignore
                    return func.decompose(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)
