"""One lane's computation as a list of tensor operations that programs know, if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from workers.numerics.codegen.values import CannotGenerate, Kind
from workers.numerics.simplifying import Operation, Slot, join_gradients, replace, simplify, slots_in
from workers.numerics.tape import Tape
from workers.numerics.tracing import ONE_TRACE


class Recording(NamedTuple):
    """The operations of one lane."""

    operations: list[Operation]
    kinds: Mapping[Slot, Kind]
    given: list[Slot]
    results: list[Any]
    """Slots and constants."""


def record(function: Callable[..., Any], leaves: Sequence[Tensor], knows: Callable[[str], bool]) -> Recording:
    """Record a function of tensors that returns nested tensors; raises CannotRecord.

    An unknown operation is recorded as the simpler ones that torch makes of it, if it does.
    """
    given = [leaf.detach() for leaf in leaves]
    tape = _SimplerTape(given, knows)
    # Programs have no attention of their own: it becomes products and a softmax. That choice is a
    # setting of the process, so nothing else may be recorded meanwhile.
    with ONE_TRACE, sdpa_kernel(SDPBackend.MATH), tape:
        results = tape.slots(pytree.tree_leaves(function(*given)))
    known = {slot: tensor for slot, tensor in tape.made.items() if slot in tape.fixed}
    # Constants, also those that were written piece by piece, have their last numbers by now.
    operations = [
        operation._replace(arguments=replace(Slot, lambda slot: known.get(slot, slot), operation.arguments))
        for operation in tape.operations
        if not operation.results or not known.keys() >= slots_in(operation.results)
    ]
    results = replace(Slot, lambda slot: known.get(slot, slot), results)
    operations = join_gradients(simplify(operations, results), results)
    return Recording(operations, tape.kinds, tape.leaves, results)


class _SimplerTape(Tape):
    def __init__(self, leaves: Sequence[Tensor], knows: Callable[[str], bool]) -> None:
        super().__init__(leaves)
        self._knows = knows
        self.made: dict[Slot, Tensor] = {}
        """Tensors that were constants when they were made."""
        self._read: dict[int, Any] = {}
        """Address of constant memory that operations on lanes' tensors have read -> the memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = name_of(func)
        if torch.Tag.nondeterministic_seeded in func.tags and func not in _SIMPLER:
            raise CannotGenerate(f"{name}, whose random numbers would be the same in every step")
        if not self._knows(name):
            from torch._decomp import decomposition_table  # slow to load

            with self:
                if simpler := _SIMPLER.get(func) or decomposition_table.get(func):
                    return simpler(*args, **(kwargs or {}))
                if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):  # pyright: ignore
                    return func.decompose(*args, **(kwargs or {}))
        self._note_constants(func, name, args, kwargs or {})
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        for leaf in pytree.tree_leaves(returned):
            if isinstance(leaf, Tensor) and (slot := self.slots(leaf)) in self.fixed:
                self.made[slot] = leaf
        return returned

    def _note_constants(self, func: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Note which constants an operation reads: a program has only their last values.

        Raises CannotGenerate if it writes into a constant that was read before.
        """
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        slots = [self.slots(tensor) for tensor in tensors]
        constants = [not isinstance(slot, Slot) or slot in self.fixed for slot in slots]
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info and argument.alias_info.is_write and isinstance(value, Tensor):
                if not isinstance(self.slots(value), Slot):
                    raise CannotGenerate(f"{name} into a tensor that is kept from step to step")
                if all(constants) and value.untyped_storage().data_ptr() in self._read:
                    raise CannotGenerate(f"{name} into a constant that was read before")
        if not all(constants):
            for tensor, is_constant in zip(tensors, constants, strict=True):
                if is_constant:
                    memory = tensor.untyped_storage()
                    self._read[memory.data_ptr()] = memory


def name_of(function: Any) -> str:
    """Return the name of a tensor operation, with its library's where that is not torch's own."""
    packet = getattr(function, "overloadpacket", None)
    if packet is None:
        return ""
    name = packet.__name__
    return name if function.namespace == "aten" else f"{function.namespace}::{name}"


def _attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute torch's CPU attention and the logarithms of its sums; raises CannotGenerate."""
    if dropout:
        raise CannotGenerate(f"attention with dropout {dropout}")
    logits = _logits(query, key, causal, scale)
    largest = logits.amax(-1, keepdim=True)
    powers = (logits - largest).exp()
    total = powers.sum(-1, keepdim=True)
    return (powers / total) @ value, (largest + total.log()).squeeze(-1)


def _attention_gradient(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    dropout: float,
    causal: bool,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    weights = (_logits(query, key, causal, scale) - logsumexp[..., None]).exp()
    inside = (gradient * mixed).sum(-1, keepdim=True)
    by_logits = weights * (gradient @ value.mT - inside) * scale
    return by_logits @ key, by_logits.mT @ query, weights.mT @ gradient


def _logits(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    logits = query @ key.mT * scale
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(hidden, -torch.inf) if causal else logits


_aten: Any = torch.ops.aten
_SIMPLER: dict[Any, Callable[..., Any]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_gradient,
}
"""Operations that the packaged models call -> the same in operations that programs support."""
