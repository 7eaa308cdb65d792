"""The cost of tensor operations on a device: its kernels, and the bytes and FLOPs of each.

A kernel reads each argument once and writes each result once: what torch's kernels move beyond that
(a reduction in two passes, a sort in many) is not counted, and an operation of several kernels
counts as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from workers.numerics.fusion.fusions import fusion_of

_NO_KERNELS = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("lift_fresh", "_unsafe_view", "detach", "detach_"),
}
"""Operations that are no views, and still compute nothing."""


class Kernel(NamedTuple):
    """One kernel."""

    operation: str
    bytes: int
    """Bytes read and written."""
    flops: int
    """Two for each pair of numbers of a product, else one for each number written."""
    size: int
    """Numbers written, or read if these are more: about the threads that it can use."""


def is_kernel(operation: Any) -> bool:
    """Return True if an operation (an OpOverload) computes something, unlike views and the like."""
    return not operation.is_view and operation.overloadpacket.__name__ not in _NO_KERNELS


_KERNELS = {"fusion", "cuda_update", "stream_states", "stream_words", "stream_mask", "stream_permutations"}
"""Our own operations that are one kernel."""


def implementation(operation: Any) -> Any:
    """Return the function of an operation of ours made of torch's; None for others and kernels."""
    if operation.namespace != "graft" or operation.overloadpacket.__name__ in _KERNELS:
        return None
    return OPDEFS[f"graft::{operation.overloadpacket.__name__}"]._init_fn  # pyright: ignore[reportPrivateUsage]


class KernelList(TorchDispatchMode):
    """Lists a device's kernels of this thread, below vmap and autograd, while it is entered."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        keywords = kwargs or {}
        if (ours := implementation(func)) is not None:
            with self:
                return ours(*args, **keywords)
        results = func(*args, **keywords)
        given, made = _tensors((args, keywords)), _tensors(results)
        # Single numbers of the processor's are computed there, and before the GPU needs them.
        if is_kernel(func) and any(tensor.device == self._device for tensor in (*given, *made)):
            moved, written = sum(map(stored_bytes, (*given, *made))), sum(tensor.numel() for tensor in made)
            count = flop_registry.get(func.overloadpacket)
            flops = int(count(*args, **keywords, out_val=results)) if count else written
            if func.namespace == "graft" and func.overloadpacket.__name__ == "fusion":
                fusion = fusion_of(args[0])
                moved, flops = moved + 2 * fusion.scratch_bytes, fusion.flops
            size = max([written, *(tensor.numel() for tensor in given)])
            self.kernels.append(Kernel(str(func), moved, flops, size))
        return results


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's numbers in memory; expanded ones count once."""
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or not size]
    return math.prod(sizes) * tensor.dtype.itemsize
