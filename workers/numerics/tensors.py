"""Small tensor functions that more than one family needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def one_hot(tokens: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[..., size] with 1 at each token. A comparison, so that it batches over lanes and needs no scatter."""
    return (tokens[..., None] == torch.arange(size, device=tokens.device)).to(dtype)


@functools.cache
def constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """[n] int64 that stay on the device: made anew at each step, they would be sent to a GPU each time. Read only."""
    return torch.tensor(numbers, device=device)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log likelihood [...] of `targets` [...] under softmax(logits [..., v]).

    Spelled out, as torch's own log-softmax leaves the vector units idle when rows are short.
    """
    shifted = logits - logits.amax(-1, keepdim=True).detach()
    picked = shifted.gather(-1, targets[..., None])[..., 0]
    return shifted.exp().sum(-1).log() - picked


def fold_lanes(lanes: int, dims: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Stack the lanes of a vmap along the first axis of each tensor: [L, n, ...] becomes [L n, ...]."""
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
    """Values [..., n] with `filler` from entry `size` on; a plain number says that nothing is padded."""
    if isinstance(size, int):
        return values
    return values.masked_fill(torch.arange(values.shape[-1], device=values.device) >= size, filler)


def mean_unpadded(values: Tensor, size: int | Tensor) -> Tensor:
    """Return the mean over the first `size` of the last axis; an int means no padding: the whole axis counts."""
    if isinstance(size, int):
        return values.mean(-1)
    return cut(values, size, 0.0).sum(-1) / size.to(values.dtype)


mean_of = mean_unpadded  # as tasks from outside may know it


def gradients(
    values: Tensor, wanted: Sequence[Tensor], gradient: Tensor, *, create_graph: bool = False
) -> list[Tensor | None]:
    """Return the gradients by `wanted` of the sum of values * gradient; None for a tensor that no value depends on.

    `torch.autograd.grad` without its check of shapes, which imports sympy and so takes a third of a second of a launch.
    """
    assert values.shape == gradient.shape, "a number for each value"
    run = torch.autograd.graph._engine_run_backward  # pyright: ignore[reportPrivateUsage]
    return [*run((values,), (gradient,), True, create_graph, tuple(wanted), True, accumulate_grad=False)]


def power(base: Tensor, exponent: Tensor | float) -> Tensor:
    """Return the power base ** exponent, for base > 0.

    torch's own power rounds the last entries of a tensor differently from those that fill its vector registers, so that
    a lane's bits would depend on its place in the pack.
    """
    return (exponent * base.log()).exp()


def logistic(values: Tensor) -> Tensor:
    """1 / (1 + e^-x), as exact for large negative x, with the same bits wherever in a tensor an entry lies."""
    if fills_registers(values):
        return values.sigmoid()
    positive = values >= 0
    small = torch.where(positive, -values, values).exp()  # slope -1 at zero, where |x| would have none
    return torch.where(positive, 1, small) / (1 + small)


def gelu(values: Tensor) -> Tensor:
    """X Phi(x), Phi the normal distribution function, with the same bits wherever in a tensor an entry lies."""
    if fills_registers(values):
        return torch.nn.functional.gelu(values)
    return 0.5 * values * (1 + torch.erf(values * math.sqrt(0.5)))


def fills_registers(values: Tensor) -> bool:
    """Return whether rows end where two of the widest vector registers do.

    What is left over torch computes one by one, in some operations (sigmoid, gelu, powers) with other rounding, so that
    a lane's bits would depend on its place in the pack.
    """
    return values.shape[-1] % 32 == 0


def nan_if_not_finite(logits: Tensor) -> Tensor:
    """[...] of logits [..., v]: 0, and NaN where one of them is not finite, as an argmax would not tell."""
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
    return len(now) == len(versions) and all(new is old and new._version == count for new, (old, count) in pairs)
