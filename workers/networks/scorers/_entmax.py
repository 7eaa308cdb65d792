"""The alpha-entmax transformation for any alpha in [1, 4], one per row, with exact gradients.

p_j = [a z_j - tau]_+ ^ (1 / a) with a = alpha - 1 and the tau for which the row sums to 1 (Peters,
Niculae and Martins 2019, "Sparse Sequence-to-Sequence Models", equation 6). Below a = 1 / 2 it is
written with t = 1 + tau, [1 + a z_j - t]_+, and meets softmax as a falls to 0, where t / a becomes
the log of softmax's sum; but n keys that weigh the same leave n^-a of the base, which from a = 1 / 2
on would be rounded away beside 1. For alpha = 2 and 1.5, given as plain numbers, the power is the
number and its square.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from workers.networks.scorers import visible_keys
from workers.numerics.rows.loops import is_recording, iterate

STEPS = 60
"""The most steps of the search: on a GPU all, as to ask whether rows have stopped is a wait; on a
CPU about five if alpha <= 2, more if steeper."""
_NEXT_TO_SOFTMAX = 1e-6
POWERS = {1.5: 2, 2.0: 1}
"""alpha -> 1 / a, where that is a whole number."""
_ANY = 0
"""The power for any other alpha, or one for each row."""


def entmax(logits: Tensor, visible: Tensor, alpha: Tensor | float) -> Tensor:
    """Return weights [..., q, k], 0 for invisible keys; `alpha` broadcasts against the logits.

    Gradients for logits and alpha are those of the implicit function, from the weights alone.
    """
    z = logits.masked_fill(~visible, -math.inf)
    z = z - z.amax(-1, keepdim=True).detach()
    power = _ANY if isinstance(alpha, Tensor) else POWERS.get(alpha, _ANY)
    a = torch.as_tensor(alpha, dtype=z.dtype, device=z.device).clamp(min=1 + _NEXT_TO_SOFTMAX) - 1
    a = a.expand(*z.shape[:-1], 1)
    search = _search if is_recording() else _threshold
    threshold = search(z.detach(), a.detach(), visible_keys(visible, logits), power)
    weights: Tensor = _Entmax.apply(z, a, threshold, power)
    return weights


class _Entmax(torch.autograd.Function):
    """The weights for a given t, with the gradients of the t for which they sum to 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, a: Tensor, t: Tensor, power: int) -> Tensor:
        return _powers(a * z, _rest(a), a, t, power)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])
        ctx.power = inputs[3]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        weights, a = ctx.saved_tensors
        positive = weights > 0
        logarithms = weights if ctx.power else torch.where(positive, weights, 1).log()
        if ctx.power == 1:  # dp / dz at fixed t
            slopes = torch.where(positive, 1, weights)
        elif ctx.power == 2:
            slopes = weights.sqrt()
        else:
            slopes = torch.where(positive, ((1 - a) * logarithms).exp(), 0)
        inner = (slopes * gradient).sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True)
        by_logits = slopes * (gradient - inner)
        if not ctx.needs_input_grad[1]:
            return by_logits, None, None, None
        alpha_slopes = weights * logarithms.square() * _curvature(a * logarithms)  # -dp / da at fixed t
        return by_logits, (alpha_slopes * (inner - gradient)).sum(-1, keepdim=True), None, None


def _curvature(m: Tensor) -> Tensor:
    """Return (e^-m - 1 + m) / m^2; near 0 its series, as the difference would cancel."""
    near = m.abs() < 0.3
    apart, small = torch.where(near, 1, m), torch.where(near, m, 0)
    series = torch.full_like(m, 1 / 3628800)
    for factorial in (362880, 40320, 5040, 720, 120, 24, 6, 2):
        series = 1 / factorial - small * series
    return torch.where(near, series, (torch.expm1(-apart) + apart) / apart.square())


@torch.library.custom_op("graft::entmax_threshold", mutates_args=())
def _threshold(z: Tensor, a: Tensor, keys: Tensor, power: int) -> Tensor:
    """Return the root of `_search` by one operation of the engine's recordings, whatever its steps."""
    return _search(z, a, keys, power)


def _search(z: Tensor, a: Tensor, keys: Tensor, power: int) -> Tensor:
    """Return t or tau [..., q, 1] by Newton's method for (sum of p)^a = 1.

    That power of the sum is the norm of [1 + a (z - t)]_+ with exponent 1 / a, which is linear in t
    if all keys weigh the same, and convex for alpha <= 2: from the left the steps then never pass
    the root. Otherwise a bracket is halved. A row stays as it is once its sum is 1, so that it does
    not depend on other rows.
    """
    close, scaled, rest = 16 * torch.finfo(z.dtype).eps, a * z, _rest(a)

    def step(low: Tensor, high: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        powers, slopes = _powers(scaled, rest, a, t, power)
        total, slope = powers.sum(-1, keepdim=True), slopes.sum(-1, keepdim=True)
        excess = total - 1
        is_left, is_right = excess > close, excess < -close
        low, high = torch.where(is_left, t, low), torch.where(is_right, t, high)
        if power == 1:
            new = t + excess / slope
        elif power == 2:
            new = t + (total - total.sqrt()) / slope
        else:
            new = t - total * torch.expm1(-a * total.log()) / slope
        # A step back to `low`, where this one came from, would loop; a step of 0 has arrived.
        inside = ((new > low) | (new == t)) & (new <= high)
        return low, high, torch.where(is_left | is_right, torch.where(inside, new, (low + high) / 2), t)

    shrinking = -a * keys.log()
    high = torch.where(rest == 0, -shrinking.exp(), -torch.expm1(shrinking))  # all keys alike
    low = (rest - 1).expand_as(high)
    return iterate(step, (low, high, low), STEPS)[2]


@_threshold.register_fake
def _threshold_shape(z: Tensor, a: Tensor, keys: Tensor, power: int) -> Tensor:
    return (z[..., :1] + a + keys).clone()


@_threshold.register_vmap
def _threshold_stacked(
    info: object, dims: tuple[int | None, ...], z: Tensor, a: Tensor, keys: Tensor, power: int
) -> tuple[Tensor, int]:
    given = zip((z, a, keys), dims[:3], strict=True)
    stacked = [tensor[None] if dim is None else tensor.movedim(dim, 0) for tensor, dim in given]
    rank = stacked[0].ndim
    z, a, keys = (tensor.reshape(tensor.shape[0], *[1] * (rank - tensor.ndim), *tensor.shape[1:]) for tensor in stacked)
    return _threshold(z, a, keys, power), 0


def _rest(a: Tensor) -> Tensor:
    """Return what a base has besides a z - t: 1, or 0 from a = 1 / 2 on, where t is tau."""
    return (a < 0.5).to(a.dtype)


def _powers(scaled: Tensor, rest: Tensor, a: Tensor, t: Tensor, power: int) -> tuple[Tensor, Tensor]:
    """Return [rest + a z - t]_+ ^ (1 / a), and its slope by z; NaN stays NaN. `scaled` is a z."""
    if power:
        root = torch.relu(scaled - t)
        return (root, torch.where(root > 0, 1, root)) if power == 1 else (root.square(), root)
    base = scaled - t
    total = rest + base
    is_zero = total <= 0
    total = torch.where(is_zero, 1, total)
    logarithm = total.log() + (base - (total - rest)) / total  # to first order with what the sum rounds away
    powers = torch.where(is_zero, 0, (logarithm / a).exp())
    return powers, powers / total
