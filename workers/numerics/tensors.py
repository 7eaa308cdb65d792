"""Small tensor functions that more than one family needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def one_hot(tokens: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return [..., size] with 1 at each token, by a comparison: lanes need no scatter."""
    return (tokens[..., None] == torch.arange(size, device=tokens.device)).to(dtype)


@functools.cache
def constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Return [n] int64, kept on the device: a GPU would get new ones at each step. Read only."""
    return torch.tensor(numbers, device=device)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log likelihood [...] of `targets` [...] under softmax(logits [..., v]).

    torch's own log-softmax leaves the vector units idle when rows are short.
    """
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    picked = shifted.gather(-1, targets[..., None])[..., 0]
    return shifted.exp().sum(-1).log() - picked


def fold_lanes(lanes: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Stack the lanes of a vmap along each tensor's first axis: [L, n, ...] becomes [L n, ...]."""
    return [
        (tensor.movedim(dim, 0) if dim is not None else tensor.expand(lanes, *tensor.shape)).flatten(0, 1)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]


def unfold_lanes(lanes: int, tensor: Tensor) -> Tensor:
    """Undo `fold_lanes`: [L n, ...] becomes [L, n, ...]."""
    return tensor.unflatten(0, (lanes, tensor.shape[0] // lanes))


IMPOSSIBLE = -1e30
"""A logit of probability 0. Finite, as 0 times it is 0."""


def cut(values: Tensor, size: int | Tensor, filler: float) -> Tensor:
    """Return values [..., n] with `filler` from entry `size` on; an int means no padding."""
    if isinstance(size, int):
        return values
    return values.masked_fill(torch.arange(values.shape[-1], device=values.device) >= size, filler)


def mean_unpadded(values: Tensor, size: int | Tensor) -> Tensor:
    """Return the mean over the first `size` of the last axis; an int means no padding."""
    if isinstance(size, int):
        return values.mean(-1)
    return cut(values, size, 0.0).sum(-1) / size.to(values.dtype)


mean_of = mean_unpadded  # as tasks from outside may know it


def gradients(
    values: Tensor, wanted: Sequence[Tensor], gradient: Tensor, *, create_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients of sum(values * gradient) by `wanted`; None for an unused tensor.

    `torch.autograd.grad` also checks shapes, which imports sympy: a third of a second of a launch.
    """
    assert values.shape == gradient.shape, "a number for each value"
    run = torch.autograd.graph._engine_run_backward  # pyright: ignore[reportPrivateUsage]
    return [*run((values,), (gradient,), True, create_graph, tuple(wanted), True, accumulate_grad=False)]


def power(base: Tensor, exponent: Tensor | float) -> Tensor:
    """Return the power base ** exponent, for base > 0.

    torch's own rounds a tensor's last entries differently: bits would depend on a lane's place.
    """
    return (exponent * base.log()).exp()


def widen(values: Tensor) -> Tensor:
    """Return half precision as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def inverse_root(values: Tensor) -> Tensor:
    """Return 1 / sqrt(x), in half precision rounded from float32.

    torch's own in bfloat16 rounds a tensor's last entries differently, as it does powers.
    """
    return torch.rsqrt(widen(values)).to(values.dtype)


def logistic(values: Tensor) -> Tensor:
    """Return 1 / (1 + e^-x), exact for large negative x, with the same bits at any place."""
    if fills_registers(values):
        return values.sigmoid()
    positive = values >= 0
    small = torch.where(positive, -values, values).exp()  # unlike |x|, has a slope at zero
    return torch.where(positive, 1, small) / (1 + small)


def gelu(values: Tensor) -> Tensor:
    """Return x Phi(x), Phi the normal distribution function, with the same bits at any place."""
    if fills_registers(values):
        return torch.nn.functional.gelu(values)
    return 0.5 * values * (1 + torch.erf(values * math.sqrt(0.5)))


def fills_registers(values: Tensor) -> bool:
    """Return whether rows end where two of the widest vector registers do.

    Else torch rounds the rest differently in some operations (sigmoid, gelu, powers): a lane's bits
    would depend on its place in the pack.
    """
    return values.shape[-1] % 32 == 0


def nan_if_not_finite(logits: Tensor) -> Tensor:
    """Return 0 [...] for logits [..., v], NaN where one is not finite, which argmax would hide."""
    return (logits - logits).sum(-1)


Versions = list[tuple[Tensor, int]]
"""Tensors, and how often they had been written into."""


def versions_of(tensors: Iterable[Tensor]) -> Versions:
    """Note these tensors' versions, which count what was written into them."""
    return [(tensor, tensor._version) for tensor in tensors]


def are_of(versions: Versions, tensors: Iterable[Tensor]) -> bool:
    """Return whether these are the same tensors, and nothing has been written into them since."""
    now = list(tensors)
    pairs = zip(now, versions, strict=False)
    unchanged = all(new is old and new._version == count for new, (old, count) in pairs)
    return unchanged and len(now) == len(versions)
