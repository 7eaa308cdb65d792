"""What one lane computes, as a list of tensor operations that programs know, where they know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from workers.numerics.fusion.values import Kind
from workers.numerics.simplifying import Operation, Slot, join_gradients, replace, simplify, slots_in
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
    known = {slot: tensor for slot, tensor in tape.made.items() if slot in tape.fixed}
    # What is made of constants alone has its last numbers by now, also where it was written piece by piece.
    operations = [
        one._replace(arguments=replace(Slot, lambda slot: known.get(slot, slot), one.arguments))
        for one in tape.operations
        if not one.results or not known.keys() >= slots_in(one.results)
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if not self._knows(func.overloadpacket.__name__):
            from torch._decomp import decomposition_table  # 800 modules, which taking a gradient has loaded by now

            with self:
                if simpler := _SIMPLER.get(func) or decomposition_table.get(func):
                    return simpler(*args, **(kwargs or {}))
                if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):  # pyright: ignore
                    return func.decompose(*args, **(kwargs or {}))
        returned = super().__torch_dispatch__(func, types, args, kwargs)
        for one in pytree.tree_leaves(returned):
            if isinstance(one, Tensor) and (slot := self.slots(one)) in self.fixed:
                self.made[slot] = one
        return returned


def _attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, *, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute torch's attention for CPUs, without dropout: what it mixes, and the logarithms of its sums."""
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
    """Compute the gradients of `_attention` by query, key and value."""
    weights = (_logits(query, key, causal, scale) - logsumexp[..., None]).exp()
    inside = (gradient * mixed).sum(-1, keepdim=True)
    by_logits = weights * (gradient @ value.mT - inside) * scale
    return by_logits @ key, by_logits.mT @ query, weights.mT @ gradient


def _logits(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    logits = query @ key.mT * scale
    hidden = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
    return logits.masked_fill(hidden, -torch.inf) if causal else logits


_SIMPLER: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_gradient,
}
"""Operations that the packaged models call by themselves -> the same of operations that programs have."""
